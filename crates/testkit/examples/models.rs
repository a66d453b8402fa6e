//! Runs the stand-in for the models' APIs until its stdin ends, with the JSON script from the given file. Prints its
//! URL, then one line per request.

use std::io::Read;
use std::time::Duration;

use sprag_testkit::models::{Models, Script};

fn main() -> Result<(), String> {
    let script = match std::env::args().nth(1) {
        Some(path) => {
            let text = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
            Script::from_json(&serde_json::from_str(&text).map_err(|error| format!("{path}: {error}"))?)?
        }
        None => Script::new(),
    };
    let models = std::sync::Arc::new(Models::start(script));
    println!("{}", models.url());
    let watched = std::sync::Arc::clone(&models);
    std::thread::spawn(move || {
        let mut shown = 0;
        let mut others = 0;
        loop {
            watched.wait_for(Duration::from_millis(300), |requests| requests.len() > shown);
            for request in watched.requests().iter().skip(shown) {
                let tools = request.tools.len();
                println!(
                    "{:?} {} key={} tools={tools} {:?}",
                    request.api,
                    request.model,
                    request.key,
                    request.prompt()
                );
                if std::env::var_os("MODELS_BODIES").is_some() {
                    println!("{}", request.body);
                }
                shown += 1;
            }
            for path in watched.other_paths().iter().skip(others) {
                println!("{path}");
                others += 1;
            }
        }
    });
    std::io::stdin().read_to_end(&mut Vec::new()).map_err(|error| error.to_string())?;
    Ok(())
}
