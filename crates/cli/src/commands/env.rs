//! `sprag env`: the environments of runs, the reason why each still exists, and their removal.

use serde_json::{Value, json};
use sprag_app::view::{EnvironmentView, bytes_of, size_of};
use sprag_app::{App, Chore, EnvironmentDetails, EnvironmentRow, Environments, Limits, Row, Then};
use sprag_lifecycle::EnvironmentStatus;
use sprag_worktree::RefPurpose;

use crate::args::EnvCommand;
use crate::context::{Context, find_run};
use crate::exit::{Exit, Failure};
use crate::show::{line, plain, span, table};

pub(crate) async fn env(context: &Context, command: &EnvCommand) -> Result<Exit, Failure> {
    let app = context.app()?;
    let keeper = Environments::new(&app, app.new_id());
    match command {
        EnvCommand::Ls => ls(context, &app, &keeper),
        EnvCommand::Show { run } => show(context, &app, &keeper, run),
        EnvCommand::Rm { run } => rm(context, &app, &keeper, run).await,
        EnvCommand::Gc { dry_run, older_than, salvage } => {
            let older_than = sprag_pipeline::parse_duration(older_than).map_err(|error| {
                Failure::usage(format!("--older-than {older_than:?}: {error}"))
                    .next("write it like 12h or 30d")
            })?;
            gc(context, &keeper, *dry_run, Limits { older_than, salvage: *salvage }).await
        }
    }
}

fn ls(context: &Context, app: &App, keeper: &Environments) -> Result<Exit, Failure> {
    let rows = app.environments(false)?;
    let pooled = keeper.pooled()?;
    let out_of_order = keeper.checkouts_out_of_order()?;
    let now = app.now().wall_ms;
    if context.json {
        let mut told: Vec<Value> = rows.iter().map(|row| as_json(keeper, row)).collect();
        told.extend(pooled.iter().map(|mark| {
            json!({ "status": "pooled", "path": mark.path, "bytes": size_of(&mark.path), "why": "kept ready for the next run" })
        }));
        told.extend(out_of_order.iter().map(|one| {
            json!({ "status": "out_of_order", "path": one.checkout, "why": one.why, "repair": one.repair })
        }));
        line(&Value::Array(told).to_string());
        return Ok(Exit::Ok);
    }
    let mut cells: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let details = EnvironmentDetails::of_readable(row);
            vec![
                row.run.map(|run| run.to_string()).unwrap_or_default(),
                row.status().to_string(),
                details.branch.unwrap_or_default(),
                bytes(bytes_of(row)),
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
        line("no worktrees");
    } else {
        table(context.style, &["RUN", "STATUS", "BRANCH", "SIZE", "AGE", "WHY"], &cells);
    }
    for one in &out_of_order {
        line(&format!("checkout {}: {}", one.checkout.display(), plain(&one.why)));
        line(&format!("  to repair it: {}", plain(&one.repair)));
    }
    Ok(Exit::Ok)
}

fn as_json(keeper: &Environments, row: &EnvironmentRow) -> Value {
    json!(EnvironmentView::of(row, keeper.why_there(row)))
}

/// Returns the environments of a run.
fn of_run(app: &App, run: &str) -> Result<Vec<EnvironmentRow>, Failure> {
    let known = find_run(app, Some(run))?;
    let rows = app.environments_of(known.id())?;
    if rows.is_empty() {
        let none = Failure {
            exit: Exit::Nothing,
            ..Failure::error(format!("run {} has no environment", known.id()))
        };
        return Err(none.next("only runs of pipelines with `environment:` have one"));
    }
    Ok(rows)
}

fn show(context: &Context, app: &App, keeper: &Environments, run: &str) -> Result<Exit, Failure> {
    let rows = of_run(app, run)?;
    if context.json {
        line(&Value::Array(rows.iter().map(|row| as_json(keeper, row)).collect()).to_string());
        return Ok(Exit::Ok);
    }
    let style = context.style;
    for row in &rows {
        let details = EnvironmentDetails::of_readable(row);
        line(&format!("{}  {}", style.bold(&row.path), style.status(&row.status().to_string(), 0)));
        for (name, value) in [
            ("branch", details.branch.unwrap_or_default()),
            ("repository", details.repository.unwrap_or_default()),
            ("host", row.host.to_string()),
            ("keep", details.keep.as_str().into()),
            ("size", bytes(bytes_of(row))),
            ("made", format!("attempt {}", row.provision_attempt)),
            ("why", keeper.why_there(row)),
        ] {
            line(&format!("  {name:<11}{value}"));
        }
    }
    Ok(Exit::Ok)
}

async fn rm(context: &Context, app: &App, keeper: &Environments, run: &str) -> Result<Exit, Failure> {
    let mut outcomes = Outcomes::default();
    for row in of_run(app, run)?.iter().filter(|row| row.status() != EnvironmentStatus::Destroyed) {
        let how = keeper.remove(row, Then::Nothing).await.map_err(|why| {
            Failure::error(why.message).next(format!("a live run keeps its environment: sprag cancel {run}"))
        })?;
        outcomes.tell(context, &row.path, if how.is_empty() { "removed" } else { &how });
    }
    if !outcomes.any {
        eprintln!("nothing to remove: the worktree of run {run} is gone");
    }
    outcomes.finish(context);
    Ok(Exit::Ok)
}

/// What became of each thing that was to be removed: a line each for people, one array for programs.
#[derive(Default)]
struct Outcomes {
    told: Vec<Value>,
    /// Whether there was anything to tell.
    any: bool,
}

impl Outcomes {
    fn tell(&mut self, context: &Context, what: &str, how: &str) {
        self.any = true;
        if context.json {
            self.told.push(json!({ "path": what, "outcome": how }));
        } else {
            line(&format!("{what}: {}", plain(how)));
        }
    }

    fn finish(self, context: &Context) {
        if context.json {
            line(&Value::Array(self.told).to_string());
        }
    }
}

async fn gc(
    context: &Context,
    keeper: &Environments,
    dry_run: bool,
    limits: Limits,
) -> Result<Exit, Failure> {
    let chores = keeper.chores(limits)?;
    let mut outcomes = Outcomes::default();
    let mut freed = 0;
    let mut forgotten = 0;
    let mut wrong = 0;
    // The size of a folder must be known before it is removed.
    let mut described = chores.iter().map(describe).collect::<Vec<_>>().into_iter();
    let mut tell = |chore: &Chore, done: Result<String, sprag_app::Error>| {
        let (what, size) = described.next().unwrap_or_else(|| describe(chore));
        match done {
            Ok(how) => {
                freed += size;
                forgotten += refs_in(chore);
                outcomes.tell(context, &what, &how);
            }
            Err(why) => {
                wrong += 1;
                outcomes.tell(context, &what, &format!("not removed: {why}"));
            }
        }
    };
    if dry_run {
        chores.iter().for_each(|chore| tell(chore, Ok("would be removed".into())));
    } else {
        keeper.do_chores(&chores, tell).await;
    }
    if !dry_run {
        for checkout in keeper.recover()? {
            outcomes.tell(context, &format!("checkout {}", checkout.display()), "repaired");
        }
    }
    outcomes.finish(context);
    if !context.json {
        let verb = if dry_run { "would free" } else { "freed" };
        let refs = match forgotten {
            0 => String::new(),
            // Git removes the objects that only these refs kept when it next collects garbage.
            many => format!(", and {many} refs: `git gc` frees what only they held"),
        };
        eprintln!("{verb} {}{refs}", bytes(freed));
    }
    Ok(if wrong > 0 { Exit::Error } else { Exit::Ok })
}

/// Returns the subject of a chore, and the space that it frees in bytes.
fn describe(chore: &Chore) -> (String, u64) {
    match chore {
        Chore::Remove { path, why, .. } => (format!("worktree {} ({why})", path.display()), size_of(path)),
        Chore::Unpool { path } => (format!("ready worktree {}", path.display()), size_of(path)),
        Chore::Recover { path, run } => (format!("worktree {} of run {run}", path.display()), size_of(path)),
        Chore::Debris { path, .. } => (format!("left over {}", path.display()), size_of(path)),
        Chore::DeleteBranch { branch, .. } => (format!("branch {branch}"), 0),
        Chore::Forget { run, refs, .. } => {
            let count = |purpose| refs.iter().filter(|kept| kept.purpose == purpose).count();
            let (states, starts, fences) =
                (count(RefPurpose::Checkpoint), count(RefPurpose::Start), count(RefPurpose::Fence));
            (format!("{states} recorded states, {starts} starts, {fences} fences of run {run}"), 0)
        }
        Chore::DropBroken { broken, .. } => (format!("broken ref {}", broken.name), 0),
        Chore::DropSalvage { saved, why, .. } => (format!("saved work {} ({why})", saved.name), 0),
    }
}

/// Returns the number of refs that a chore deletes beside branches.
fn refs_in(chore: &Chore) -> usize {
    match chore {
        Chore::Forget { refs, .. } => refs.len(),
        Chore::DropSalvage { .. } | Chore::DropBroken { .. } => 1,
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
