//! A program with Sprag inside: handlers of its own, a pipeline, events, a clean end.
//!
//!     cargo run -p sprag --example embedded

use std::collections::BTreeMap;

use serde_json::json;
use sprag::{Call, Engine};

const PIPELINE: &str = "
name: order
inputs:
  item: { type: string, default: a teapot }
steps:
  - id: reserve
    call: { handler: reserve, with: { item: \"{{ inputs.item }}\" } }
    retry: { attempts: 3, delay: 100ms }
  - id: charge
    call: { handler: charge, with: { cents: 4200 } }
    at_most_once: true
  - id: ship
    call: ship
";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let data = std::env::temp_dir().join(format!("sprag-embedded-{}", std::process::id()));
    tokio::runtime::Runtime::new()?.block_on(async {
        let engine = Engine::builder(&data)
            .handler("reserve", |call: Call| async move {
                // The first attempt finds the warehouse closed.
                if call.attempt == 1 {
                    Err("the warehouse does not answer".into())
                } else {
                    Ok(json!("shelf 7"))
                }
            })
            .handler("charge", |call: Call| async move {
                println!("charging {} cents once, by the key {}", call.with["cents"], call.idempotency_key());
                Ok(json!({ "receipt": 1 }))
            })
            .handler("ship", |_| async { Ok(json!("on its way")) })
            .start()
            .await?;
        let pipeline = sprag::parse("order.yaml", PIPELINE)?;
        let run = engine.submit(&pipeline, &BTreeMap::new()).await?;
        let status = engine.wait(run).await?;
        for entry in engine.events(Some(run), 0).ready()? {
            println!("{:>3} {:<20} {} -> {}", entry.seq, entry.event, entry.from.unwrap_or("-"), entry.to);
        }
        println!("{run} {status}: {:?}", engine.output(run, "ship")?);
        engine.shutdown().await?;
        Ok::<(), Box<dyn std::error::Error>>(())
    })?;
    std::fs::remove_dir_all(&data)?;
    Ok(())
}
