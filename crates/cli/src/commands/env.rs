//! `sprag env`: where runs work, why each place is still there, and how to get rid of it.

use std::path::Path;

use serde_json::{Value, json};
use sprag::view::{EnvironmentView, size_of};
use sprag::{Chore, Details, Environments, Limits, Then};
use sprag_lifecycle::EnvironmentStatus;
use sprag_store::{EnvironmentRow, Row, Store};
use sprag_worktree::Keeps;

use crate::args::EnvCommand;
use crate::context::{Context, find_run};
use crate::exit::{Exit, Failure};
use crate::show::{line, plain, span, table};

pub(crate) async fn env(context: &Context, command: &EnvCommand) -> Result<Exit, Failure> {
    let store = context.store()?;
    let keeper = Environments::new(store.clone(), &context.data, store.new_id());
    match command {
        EnvCommand::Ls => ls(context, &store, &keeper),
        EnvCommand::Show { run } => show(context, &store, &keeper, run),
        EnvCommand::Rm { run } => rm(context, &store, &keeper, run).await,
        EnvCommand::Gc { dry_run, older_than, salvage } => {
            let older_than = sprag_pipeline::parse_duration(older_than).map_err(|error| {
                Failure::usage(format!("--older-than {older_than:?}: {error}"))
                    .next("write it like 12h or 30d")
            })?;
            gc(context, &keeper, *dry_run, Limits { older_than, salvage: *salvage }).await
        }
    }
}

fn ls(context: &Context, store: &Store, keeper: &Environments) -> Result<Exit, Failure> {
    let rows = store.read(|db| db.environments(false))?;
    let pooled = keeper.pooled().map_err(Failure::error)?;
    let now = store.now().wall_ms;
    if context.json {
        let mut told: Vec<Value> = rows.iter().map(|row| as_json(keeper, row)).collect();
        told.extend(pooled.iter().map(|mark| {
            json!({ "status": "pooled", "path": mark.path, "bytes": size_of(&mark.path), "why": "kept ready for the next run" })
        }));
        line(&Value::Array(told).to_string());
        return Ok(Exit::Ok);
    }
    let mut cells: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let details = Details::of(row);
            vec![
                row.run.map(|run| run.to_string()).unwrap_or_default(),
                row.status().to_string(),
                details.branch.unwrap_or_default(),
                bytes(size_of(Path::new(&*row.path))),
                span(now - row.created_ms),
                keeper.why_there(row),
            ]
        })
        .collect();
    cells.extend(pooled.iter().map(|mark| {
        let age = span(now - mark.created_unix_ms as i64);
        vec![
            "-".into(),
            "pooled".into(),
            "-".into(),
            bytes(size_of(&mark.path)),
            age,
            "ready for the next run".into(),
        ]
    }));
    if cells.is_empty() {
        line("no environments are there");
    } else {
        table(context.style, &["RUN", "STATUS", "BRANCH", "SIZE", "AGE", "WHY"], &cells);
    }
    Ok(Exit::Ok)
}

fn as_json(keeper: &Environments, row: &EnvironmentRow) -> Value {
    json!(EnvironmentView::of(row, keeper.why_there(row)))
}

/// The environments of a run.
fn of_run(store: &Store, run: &str) -> Result<Vec<EnvironmentRow>, Failure> {
    let known = find_run(store, Some(run))?;
    let rows = store.read(|db| db.environments_of(known.id()))?;
    if rows.is_empty() {
        let none = Failure {
            exit: Exit::Nothing,
            ..Failure::error(format!("run {} has no environment", known.id()))
        };
        return Err(none.next("only runs of pipelines with `environment:` have one"));
    }
    Ok(rows)
}

fn show(context: &Context, store: &Store, keeper: &Environments, run: &str) -> Result<Exit, Failure> {
    let rows = of_run(store, run)?;
    if context.json {
        line(&Value::Array(rows.iter().map(|row| as_json(keeper, row)).collect()).to_string());
        return Ok(Exit::Ok);
    }
    let style = context.style;
    for row in &rows {
        let details = Details::of(row);
        line(&format!("{}  {}", style.bold(&row.path), style.status(&row.status().to_string(), 0)));
        let repository = details.repository.map(|path| path.display().to_string()).unwrap_or_default();
        for (name, value) in [
            ("branch", details.branch.unwrap_or_default()),
            ("repository", repository),
            ("host", row.host.to_string()),
            ("keep", details.keep),
            ("size", bytes(size_of(Path::new(&*row.path)))),
            ("made", format!("attempt {}", row.provision_attempt)),
            ("why", keeper.why_there(row)),
        ] {
            line(&format!("  {name:<11}{value}"));
        }
    }
    Ok(Exit::Ok)
}

async fn rm(context: &Context, store: &Store, keeper: &Environments, run: &str) -> Result<Exit, Failure> {
    for row in of_run(store, run)?.iter().filter(|row| row.status() != EnvironmentStatus::Destroyed) {
        let how = keeper.remove(row, Then::Nothing).await.map_err(|why| {
            Failure::error(why).next(format!("a live run keeps its environment: sprag cancel {run}"))
        })?;
        tell(context, &row.path, &how);
    }
    Ok(Exit::Ok)
}

fn tell(context: &Context, what: &str, how: &str) {
    if context.json {
        line(&json!({ "path": what, "outcome": how }).to_string());
    } else {
        line(&format!("{what}: {}", plain(how)));
    }
}

async fn gc(
    context: &Context,
    keeper: &Environments,
    dry_run: bool,
    limits: Limits,
) -> Result<Exit, Failure> {
    let chores = keeper.chores(limits).map_err(Failure::error)?;
    let mut freed = 0;
    let mut forgotten = 0;
    let mut wrong = 0;
    for chore in &chores {
        let (what, size) = describe(chore);
        freed += size;
        forgotten += refs_in(chore);
        if dry_run {
            tell(context, &what, "would go");
            continue;
        }
        match keeper.do_chore(chore).await {
            Ok(how) => tell(context, &what, &how),
            Err(why) => {
                freed -= size;
                forgotten -= refs_in(chore);
                wrong += 1;
                tell(context, &what, &format!("still there: {why}"));
            }
        }
    }
    if !dry_run {
        keeper.recover().map_err(Failure::error)?;
    }
    if !context.json {
        let verb = if dry_run { "would free" } else { "freed" };
        let refs = match forgotten {
            0 => String::new(),
            // Git lets go of what they held when it next tidies up.
            many => format!(", and {many} refs: `git gc` frees what only they held"),
        };
        eprintln!("{verb} {}{refs}", bytes(freed));
    }
    Ok(if wrong > 0 { Exit::Error } else { Exit::Ok })
}

/// What a chore is about, and how much space it frees.
fn describe(chore: &Chore) -> (String, u64) {
    match chore {
        Chore::Remove { path, why, .. } => (format!("worktree {} ({why})", path.display()), size_of(path)),
        Chore::Unpool { path } => (format!("ready worktree {}", path.display()), size_of(path)),
        Chore::Recover { path, run } => (format!("worktree {} of run {run}", path.display()), size_of(path)),
        Chore::Debris { path, .. } => (format!("left over {}", path.display()), size_of(path)),
        Chore::DeleteBranch { branch, .. } => (format!("branch {branch}"), 0),
        Chore::Forget { run, refs, .. } => {
            let count = |keeps| refs.iter().filter(|kept| kept.keeps == keeps).count();
            let (states, starts, fences) =
                (count(Keeps::Checkpoint), count(Keeps::Start), count(Keeps::Fence));
            (format!("{states} recorded states, {starts} starts, {fences} fences of run {run}"), 0)
        }
        Chore::DropSalvage { saved, why, .. } => (format!("saved work {} ({why})", saved.name), 0),
    }
}

/// How many refs a chore deletes beside branches.
fn refs_in(chore: &Chore) -> usize {
    match chore {
        Chore::Forget { refs, .. } => refs.len(),
        Chore::DropSalvage { .. } => 1,
        _ => 0,
    }
}

pub(super) fn bytes(count: u64) -> String {
    match count {
        0..1024 => format!("{count} B"),
        1024..1_048_576 => format!("{} KiB", count / 1024),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", count as f64 / 1_048_576.0),
        _ => format!("{:.1} GiB", count as f64 / 1_073_741_824.0),
    }
}
