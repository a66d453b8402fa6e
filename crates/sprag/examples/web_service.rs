//! A web service that embeds Sprag: each request starts a run, and its client can follow it.
//!
//!     cargo run -p sprag --example web_service -- [FOLDER] [ADDRESS]
//!
//!     curl -d '{"item":"teapot","cents":4200}' -H 'content-type: application/json' \
//!          -H 'idempotency-key: order-7' http://127.0.0.1:8080/orders
//!     curl http://127.0.0.1:8080/orders/RUN
//!     curl -N http://127.0.0.1:8080/orders/RUN/events
//!
//! Kill it while an order is in progress and start it again: the order continues.

use std::convert::Infallible;
use std::path::PathBuf;

use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{Event as SseEvent, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::stream::{self, Stream};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sprag::{Context, Engine, ErrorKind, HandlerError, Pipeline, Run, RunId};

const PIPELINE: &str = "
name: order
inputs:
  item: { type: string, required: true }
  cents: { type: integer, required: true }
steps:
  - id: reserve
    call: { handler: reserve, with: '{{ inputs.item }}' }
    retry: { attempts: 3, delay: 100ms }
  - id: charge
    call: { handler: charge, with: { cents: '{{ inputs.cents }}', shelf: '{{ steps.reserve.outputs.shelf }}' } }
    at_most_once: true
";

#[derive(Serialize, Deserialize)]
struct Order {
    item: String,
    cents: u64,
}

#[derive(Serialize)]
struct Reservation {
    shelf: usize,
}

#[derive(Deserialize)]
struct Charge {
    cents: u64,
    shelf: usize,
}

#[derive(Serialize)]
struct Receipt {
    key: String,
    cents: u64,
    shelf: usize,
}

async fn reserve(ctx: Context, item: String) -> Result<Reservation, HandlerError> {
    // The warehouse does not answer at first.
    if ctx.attempt() == 1 {
        return Err("the warehouse does not answer".into());
    }
    ctx.log(format!("reserved {item} with fence {}", ctx.fence()));
    Ok(Reservation { shelf: item.len() })
}

async fn charge(ctx: Context, charge: Charge) -> Result<Receipt, HandlerError> {
    Ok(Receipt { key: ctx.idempotency_key(), cents: charge.cents, shelf: charge.shelf })
}

/// The state that all requests share.
#[derive(Clone)]
struct Shop {
    engine: Engine,
    pipeline: Pipeline,
}

/// A refusal, as an answer.
struct Problem(StatusCode, String);

impl From<sprag::Error> for Problem {
    fn from(error: sprag::Error) -> Self {
        let status = match error.kind() {
            ErrorKind::NotFound => StatusCode::NOT_FOUND,
            ErrorKind::Invalid => StatusCode::UNPROCESSABLE_ENTITY,
            ErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Problem(status, error.to_string())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        (self.0, Json(json!({ "error": self.1 }))).into_response()
    }
}

/// Starts a run for an order. A client that repeats the request with its key gets the same run.
async fn new_order(
    State(shop): State<Shop>,
    headers: HeaderMap,
    Json(order): Json<Order>,
) -> Result<(StatusCode, Json<Value>), Problem> {
    let mut request = shop.engine.new_run(&shop.pipeline).inputs(order);
    if let Some(key) = headers.get("idempotency-key").and_then(|key| key.to_str().ok()) {
        request = request.idempotency_key(key);
    }
    let run = request.start().await?;
    Ok((StatusCode::ACCEPTED, Json(json!({ "run": run.id().to_string() }))))
}

fn find(shop: &Shop, id: &str) -> Result<Run, Problem> {
    let id: RunId = id.parse().map_err(|_| Problem(StatusCode::NOT_FOUND, format!("{id:?} is no run")))?;
    Ok(shop.engine.run(id)?)
}

/// Returns an order's status and, once it is charged, its receipt.
async fn order(State(shop): State<Shop>, Path(id): Path<String>) -> Result<Json<Value>, Problem> {
    let run = find(&shop, &id)?;
    let receipt: Option<Value> = run.output("charge")?;
    Ok(Json(json!({ "status": run.status()?.to_string(), "receipt": receipt })))
}

/// Streams an order's events from its first to its last one.
async fn events(
    State(shop): State<Shop>,
    Path(id): Path<String>,
) -> Result<Sse<impl Stream<Item = Result<SseEvent, Infallible>>>, Problem> {
    let run = find(&shop, &id)?;
    let events = run.events();
    let pages = stream::unfold(Some((run, events)), |following| async {
        let (run, mut events) = following?;
        // Read the status first: the events that follow include those that led to it.
        let is_over = run.status().map_or(true, |status| status.is_terminal());
        let page = if is_over { events.ready() } else { events.next().await };
        let lines: Vec<_> = page.unwrap_or_default().into_iter().map(|event| line(&event)).collect();
        Some((stream::iter(lines), if is_over { None } else { Some((run, events)) }))
    });
    Ok(Sse::new(futures_util::StreamExt::flatten(pages)))
}

fn line(event: &sprag::Event) -> Result<SseEvent, Infallible> {
    Ok(SseEvent::default().id(event.seq.to_string()).event(event.event).data(json!(event).to_string()))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let folder = args.next().map_or_else(|| PathBuf::from("orders"), PathBuf::from);
    let address = args.next().unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let engine = Engine::sqlite(folder).handler("reserve", reserve).handler("charge", charge).start().await?;
    let shop = Shop { engine: engine.clone(), pipeline: Pipeline::parse(PIPELINE)? };
    let routes = Router::new()
        .route("/orders", post(new_order))
        .route("/orders/{run}", get(order))
        .route("/orders/{run}/events", get(events))
        .with_state(shop);
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);
    let stop = async { drop(tokio::signal::ctrl_c().await) };
    axum::serve(listener, routes).with_graceful_shutdown(stop).await?;
    engine.shutdown().await?;
    println!("stopped");
    Ok(())
}
