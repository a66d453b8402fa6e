//! The tools: one line each in the table, with the scope that it needs and the object that it concerns; one function
//! each below it.

use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rmcp::model::{JsonObject, Tool};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sprag_app::boards::{self, BoardSpec, BoardView, ClaimSpec, lease_of};
use sprag_app::tokens::Scope;
use sprag_app::view::{RunDetail, RunView};
use sprag_app::{
    Pipeline, RunFilter, RunLabels, Selection, Started, answerers_of, find_attempt, gate_text, gates,
    log_place, why_no_log,
};
use sprag_lifecycle::{RunStatus, Word};

use crate::Agents;
use crate::params::*;
use crate::permit::{Concern, Permit};
use crate::rules::*;
use crate::tool_error::ToolError;

pub(crate) type Done = Result<Value, ToolError>;

macro_rules! tools {
    ($($name:ident($params:ty) $scope:ident $concern:ident: $about:literal;)+) => {
        /// Returns the tools that the caller may use, with the schemas of their parameters.
        pub(crate) fn list(permit: &Permit) -> Vec<Tool> {
            let mut tools = Vec::new();
            $(if permit.offers(Scope::$scope, Concern::$concern) {
                tools.push(Tool::new(stringify!($name), $about, schema::<$params>()));
            })+
            tools
        }

        /// Calls a tool by its name, if the caller may use it on the object that the arguments name.
        pub(crate) async fn call(agents: &Agents, name: &str, arguments: Value) -> Done {
            match name {
                $(stringify!($name) => {
                    let permit = &agents.permit;
                    permit.check(&agents.app, name, (Scope::$scope, Concern::$concern), &arguments)?;
                    $name(agents, parse::<$params>(name, arguments)?).await
                })+
                _ => {
                    let known = [$(stringify!($name)),+].join(", ");
                    Err(ToolError::new("no_tool", format!("there is no tool {name:?}"), format!("use one of: {known}")))
                }
            }
        }
    };
}

tools! {
    board_create(BoardSpec) Run InBody: "Leader: create a board for sharing tasks. Its name must differ from those of open boards.";
    board_list(ListBoards) Read Listed: "List the boards, newest first, with the number of their tasks in each status.";
    board_status(OneBoard) Read Board: "Show a board: whether it is open, and how many of its tasks are waiting, ready, claimed, done, failed, skipped, cancelled.";
    board_set_plan(SetPlan) Run Board: "Leader: change a board's goal or plan.";
    board_close(CloseBoard) Run Board: "Leader: close a board. It takes no more tasks and ends when the last one is settled.";
    board_report(OneBoard) Read Board: "Get all results of a board: every task with its worker's report, and the notes.";
    task_add(AddTasks) Run Board: "Leader: add tasks to an open board, all or none. `needs` names tasks that must be done first, by key or number, including tasks of the same call. A key that already exists adds nothing.";
    task_list(ListTasks) Read Board: "List the tasks of a board with their statuses, holders and results.";
    task_get(OneTask) Read Board: "Show one task of a board.";
    task_cancel(OneTask) Run Board: "Leader: cancel a task. Its holder learns it at the next heartbeat.";
    task_retry(OneTask) Run Board: "Leader: retry a task that failed, was cancelled or was skipped; tasks that were skipped because of it are restored too.";
    worker_register(Register) Work InBody: "Worker: register, so that others see you in the list of workers. Not needed before task_claim.";
    task_claim(ClaimSpec) Work InBody: "Worker: claim one task that has no holder, and get a token for it. If there is none, the answer gives the reason (empty, all_claimed, waiting_for_needs, backing_off, closed) and the seconds after which to try again.";
    task_start(Keep) Work Own: "Worker: get your claimed task again, and extend its lease.";
    task_heartbeat(Keep) Work Own: "Worker: extend the lease of your task. Call it well before the lease ends. An error means: stop, the task is no longer yours.";
    task_complete(Complete) Work Own: "Worker: report that the task is done: a summary, outputs that later tasks can read, files changed and created.";
    task_fail(Fail) Work Own: "Worker: report that the task failed. It may be tried again, by you or another agent.";
    task_release(Token) Work Own: "Worker: release the task unfinished; another agent can claim it at once.";
    plan_get(OneBoard) Read Board: "Get the goal and the plan of a board. Read it before you work on its tasks.";
    note_add(AddNote) Work Board: "Add a note to a board for the others.";
    note_list(ListNotes) Read Board: "List the notes of a board, in order; `after` skips those that you have read.";
    run_start(StartRun) Run InBody: "Start a run of a pipeline, from a file or a text. `sprag serve` or a `sprag worker` runs its steps.";
    run_list(ListRuns) Read Listed: "List the newest runs and their statuses.";
    run_status(OneRun) Read Run: "Show a run and its steps.";
    run_explain(OneRun) Read Run: "Explain what a run waits for, since when, and which worker has it.";
    run_logs(Logs) Read Run: "Get the end of a step's log.";
    run_cancel(OneRun) Run Run: "Cancel a run: stop its running steps and skip the rest.";
    run_skip(StepOfRun) Run Run: "Skip a step of a live run: it counts as done for the steps that need it. A step that has begun is stopped first.";
    run_retry_now(StepOfRun) Run Run: "Start the next try or round of a step that waits for the delay before it.";
    gate_list(Nothing) Read Listed: "List the questions of runs to people, and their choices.";
    account_list(Nothing) Read Listed: "List the accounts of coding agents: which are held after a usage limit, until when, and how many steps wait.";
    account_hold(HoldAccount) Run Everything: "Hold an account of coding agents: no further step uses it until the hold ends.";
    account_release(OneAccount) Run Everything: "End the hold of an account of coding agents.";
    rule_list(Nothing) Read Listed: "List the rules that start runs by themselves: status, next tick, last decision.";
    rule_show(OneRule) Read Rule: "Show a rule: its next ticks, the path of its webhook, its last decisions.";
    rule_explain(OneRule) Read Rule: "Explain why a rule did or did not fire last, or what it waits for.";
    rule_apply(ApplyRules) Run Everything: "Apply the rules in the `on` of a pipeline. Rules that it no longer has are retired.";
    rule_remove(OneRule) Run Rule: "Remove a rule; its history stays.";
    rule_backfill(BackfillRule) Run Rule: "Give the ticks between two times to a rule; those that it has taken start nothing.";
    rule_pause(PauseRule) Run Rule: "Pause a rule: from now on its events start nothing.";
    rule_resume(ResumeRule) Run Rule: "Resume a paused rule, or mend a broken one.";
    rule_fire(FireRule) Run Rule: "Fire a rule by hand. A rule with a webhook needs the event that it would get.";
    rule_test(TestRule) Run Rule: "Tell what an event, a recorded event or a tick would start. Writes nothing.";
    delivery_list(ListDeliveries) Read Listed: "List the last events that reached rules, with their decisions.";
    delivery_show(OneDelivery) Read Delivery: "Show an event that reached a rule: its content and all its decisions.";
    delivery_replay(OneDelivery) Run Delivery: "Give a recorded event to its rule again.";
    thread_list(ListThreads) Read Listed: "List the conversations of agent steps, with their statuses and turns.";
    thread_send(SendMessage) Run Thread: "Send a message to the agent of a step whose run has ended. A worker runs it; the answer is in the log of the returned run. Resume the step's run afterwards.";
    thread_stop(OneThread) Run Thread: "Stop an agent that answers a message.";
    thread_archive(OneThread) Run Thread: "Archive a conversation: it takes no further messages, and thread_list leaves it out.";
    thread_remove(OneThread) Run Thread: "Remove a conversation: stop its agent, and take no further messages.";
    thread_read(ReadThread) Read Thread: "Read what an agent said and did in a thread: its prompts, texts, tool calls and results, in order. Continue with `after` = the returned `next`.";
    gate_answer(AnswerGate) Run Run: "Answer a question of a run. The last one of several choices rejects and fails the step, unless it leads to a step; every other one approves. Give the values of the fields that gate_list shows.";
}

pub(crate) fn schema<T: JsonSchema>() -> Arc<JsonObject> {
    let mut schema = schemars::schema_for!(T).to_value();
    match schema.as_object_mut() {
        Some(object) => {
            object.remove("title");
            object.remove("$schema");
            Arc::new(std::mem::take(object))
        }
        None => Arc::default(),
    }
}

pub(crate) fn parse<T: DeserializeOwned>(tool: &str, arguments: Value) -> Result<T, ToolError> {
    serde_json::from_value(arguments).map_err(|error| {
        let next =
            format!("see the schema of {tool}, correct the arguments and call it again; nothing was changed");
        ToolError::new("invalid", format!("{tool}: {error}"), next)
    })
}

async fn board_create(agents: &Agents, spec: BoardSpec) -> Done {
    agents.permit.reach.check_board(&spec.name, spec.queue.as_deref())?;
    Ok(json!(boards::create(&agents.app, &spec).await?))
}

async fn board_list(agents: &Agents, given: ListBoards) -> Done {
    Ok(json!({ "boards": boards_in_reach(agents, given.all, 200)? }))
}

/// Returns the boards that the caller reaches, newest first.
pub(crate) fn boards_in_reach(agents: &Agents, all: bool, limit: usize) -> Result<Vec<BoardView>, ToolError> {
    let mut listed = Vec::new();
    for board in boards::list(&agents.app, all, limit)? {
        if agents.app.reaches_shown(&agents.permit.reach, &board.run)? {
            listed.push(board);
        }
    }
    Ok(listed)
}

async fn board_status(agents: &Agents, given: OneBoard) -> Done {
    Ok(json!(boards::view(&agents.app, &boards::known(&agents.app, &given.board)?)?))
}

async fn board_set_plan(agents: &Agents, given: SetPlan) -> Done {
    let board = boards::known(&agents.app, &given.board)?;
    Ok(json!(boards::set_plan(&agents.app, &board, given.goal.as_deref(), given.plan.as_deref()).await?))
}

async fn board_close(agents: &Agents, given: CloseBoard) -> Done {
    let board = boards::known(&agents.app, &given.board)?;
    Ok(json!(boards::close(&agents.app, &board, given.cancel_waiting).await?))
}

async fn board_report(agents: &Agents, given: OneBoard) -> Done {
    Ok(json!(boards::report(&agents.app, &boards::known(&agents.app, &given.board)?)?))
}

async fn task_add(agents: &Agents, given: AddTasks) -> Done {
    let board = boards::known(&agents.app, &given.board)?;
    let queues = given.tasks.iter().filter_map(|task| task.queue.as_deref());
    agents.permit.reach.check_queues(queues)?;
    Ok(json!({ "tasks": boards::add_tasks(&agents.app, &board, &given.tasks).await? }))
}

async fn task_list(agents: &Agents, given: ListTasks) -> Done {
    let board = boards::known(&agents.app, &given.board)?;
    let limit = given.limit.unwrap_or(100).min(1000);
    Ok(json!({ "tasks": boards::tasks(&agents.app, &board, &given.status, given.after, limit)? }))
}

async fn task_get(agents: &Agents, given: OneTask) -> Done {
    let board = boards::known(&agents.app, &given.board)?;
    Ok(json!(boards::task(&agents.app, &board, &given.task)?))
}

async fn task_cancel(agents: &Agents, given: OneTask) -> Done {
    let board = boards::known(&agents.app, &given.board)?;
    Ok(json!(boards::cancel_task(&agents.app, &board, &given.task).await?))
}

async fn task_retry(agents: &Agents, given: OneTask) -> Done {
    let board = boards::known(&agents.app, &given.board)?;
    Ok(json!(boards::retry_task(&agents.app, &board, &given.task).await?))
}

async fn worker_register(agents: &Agents, given: Register) -> Done {
    let board = given.board.as_ref().map(|board| boards::known(&agents.app, board)).transpose()?;
    let queues: Vec<String> =
        given.queues.into_iter().chain(board.map(|board| board.queue.to_string())).collect();
    agents.permit.reach.check_queues(queues.iter().map(String::as_str))?;
    boards::register_agent(&agents.app, &given.name, &agents.scope, &queues).await?;
    Ok(json!({ "name": given.name, "queues": queues, "next": "task_claim with this name" }))
}

async fn task_claim(agents: &Agents, given: ClaimSpec) -> Done {
    let wanted = given.wanted(&agents.app, agents.longest_wait, Arc::clone(&agents.scope))?;
    let queues = wanted.queues.iter().map(String::as_str);
    agents.permit.reach.check_queues(queues.chain(wanted.board.iter().map(|board| &*board.queue)))?;
    Ok(match boards::claim(&agents.app, &wanted).await? {
        Ok(claimed) => json!(claimed),
        Err(nothing) => {
            json!({ "token": null, "why": nothing.why, "retry_after_s": nothing.retry_after_s })
        }
    })
}

async fn task_start(agents: &Agents, given: Keep) -> Done {
    Ok(json!(boards::start(&agents.app, &given.token, lease_of(given.lease_s)).await?))
}

async fn task_heartbeat(agents: &Agents, given: Keep) -> Done {
    Ok(json!(boards::heartbeat(&agents.app, &given.token, lease_of(given.lease_s)).await?))
}

async fn task_complete(agents: &Agents, given: Complete) -> Done {
    boards::done(&agents.app, &given.token, &given.result).await?;
    Ok(json!({ "token": given.token, "outcome": "done", "next": "task_claim for another task" }))
}

async fn task_fail(agents: &Agents, given: Fail) -> Done {
    boards::fail(&agents.app, &given.token, &given.reason, !given.for_good).await?;
    Ok(json!({ "token": given.token, "outcome": "failed", "next": "task_claim for another task" }))
}

async fn task_release(agents: &Agents, given: Token) -> Done {
    boards::release(&agents.app, &given.token).await?;
    Ok(json!({ "token": given.token, "outcome": "released" }))
}

async fn plan_get(agents: &Agents, given: OneBoard) -> Done {
    let board = boards::known(&agents.app, &given.board)?;
    Ok(json!({ "board": &*board.name, "goal": &*board.goal, "plan": &*board.plan, "open": board.open }))
}

async fn note_add(agents: &Agents, given: AddNote) -> Done {
    let board = boards::known(&agents.app, &given.board)?;
    Ok(json!(boards::add_note(&agents.app, &board, &given.note).await?))
}

async fn note_list(agents: &Agents, given: ListNotes) -> Done {
    let board = boards::known(&agents.app, &given.board)?;
    let notes = boards::notes(&agents.app, &board, given.tag.as_deref(), given.after, 1000)?;
    Ok(json!({ "notes": notes }))
}

async fn run_start(agents: &Agents, given: StartRun) -> Done {
    let (dir, pipeline) =
        pipeline_of(agents, given.dir.as_deref(), given.file.as_deref(), given.yaml.as_deref())?;
    let is_whole = given.only.is_empty() && given.from.is_none() && given.skip.is_empty();
    let by_name = given.file.is_some() && given.dir.is_none() && is_whole;
    let selection = Selection { only: given.only, from: given.from, skip: given.skip };
    let pipeline = pipeline.select(&selection)?;
    let inputs = pipeline.complete(&given.inputs)?;
    let plan = pipeline.plan(&inputs)?;
    let plan = Arc::new(plan);
    let labels = RunLabels { name: given.name, labels: given.labels };
    let labels = labels.or_those_of(&pipeline, &inputs)?;
    agents.permit.reach.check_start(&plan, &labels, by_name)?;
    let uncommitted = agents.checkouts.uncommitted(&plan, &dir).await;
    let start = agents.app.new_run(plan, &inputs)?.in_folder(dir);
    let start = start.priority(given.priority).idempotency_key(given.idempotency_key.as_deref());
    let start = start.labelled(labels);
    let Started { run, is_new } = agents.app.start_run(start).await?;
    if !is_new {
        return Ok(json!({ "run": run.id, "existing": true }));
    }
    let mut told = json!({ "run": run.id, "existing": false, "next": "run_status, run_explain" });
    if let Some(uncommitted) = uncommitted {
        told["uncommitted"] = json!(uncommitted);
    }
    Ok(told)
}

/// Returns the folder in which runs of a call work, and its pipeline: a file or a text.
pub(crate) fn pipeline_of(
    agents: &Agents,
    dir: Option<&str>,
    file: Option<&str>,
    yaml: Option<&str>,
) -> Result<(PathBuf, Pipeline), ToolError> {
    let dir = dir.map_or_else(|| agents.dir.clone(), |dir| agents.dir.join(dir));
    let pipeline = match (file, yaml) {
        // Error messages quote the file, so it must be one of the project's own.
        (Some(file), None) => sprag_app::load_within(&dir.join(file), &agents.dir)?,
        (None, Some(yaml)) => sprag_app::parse("pipeline.yaml", yaml)?,
        _ => {
            let next = "call it again with one of them";
            return Err(ToolError::new("invalid", "give `file` or `yaml`, and not both", next));
        }
    };
    Ok((dir, pipeline))
}

async fn run_list(agents: &Agents, given: ListRuns) -> Done {
    let mut statuses = Vec::new();
    for word in &given.status {
        statuses.push(RunStatus::parse(word).ok_or_else(|| {
            let all: Vec<&str> = RunStatus::ALL.iter().map(|status| status.as_str()).collect();
            ToolError::new(
                "invalid",
                format!("{word:?} is not a status of a run"),
                format!("use one of: {}", all.join(", ")),
            )
        })?);
    }
    let filter = RunFilter { statuses, labels: given.labels, ..RunFilter::default() };
    runs(agents, filter, given.limit.unwrap_or(20).min(200))
}

pub(crate) fn runs(agents: &Agents, filter: RunFilter, limit: usize) -> Done {
    let filter = RunFilter { reach: agents.permit.reach.clone(), ..filter };
    let told = RunView::list(&agents.app, &agents.app.runs(&filter, limit)?.runs)?;
    Ok(json!({ "runs": told }))
}

async fn run_status(agents: &Agents, given: OneRun) -> Done {
    status(agents, &given.run)
}

pub(crate) fn status(agents: &Agents, run: &str) -> Done {
    let known = agents.find_run(run)?;
    let steps = agents.app.steps(known.id())?;
    let missing = sprag_app::missing_logs(&agents.app, agents.app.files(), &known)?;
    let waits = agents.app.waiting_for(&known.run)?;
    let outputs = agents.app.run_outputs(&known.run)?;
    let told = RunDetail::of(&known.run, &known.plan, &steps, &missing).with_outputs(outputs);
    Ok(json!(told.waiting(&known.plan, &steps, &waits)))
}

async fn run_explain(agents: &Agents, given: OneRun) -> Done {
    let known = agents.find_run(&given.run)?;
    Ok(json!(sprag_app::explain_with_inner(&agents.app, &known, &agents.permit.reach)?))
}

async fn run_logs(agents: &Agents, given: Logs) -> Done {
    let bytes = given.bytes.unwrap_or(16 * 1024).min(256 * 1024);
    let (text, note) = log_tail(agents, &given.run, &given.step, bytes)?;
    Ok(match note {
        Some(note) => json!({ "text": text, "note": note }),
        None => json!({ "text": text }),
    })
}

/// Returns the end of the log of a step's last started attempt, and a note: why there is no log, or which part is
/// missing.
pub(crate) fn log_tail(
    agents: &Agents,
    run: &str,
    step: &str,
    bytes: usize,
) -> Result<(String, Option<String>), ToolError> {
    let known = agents.find_run(run)?;
    let no = known.find_step(step, Some(&agents.app))?;
    let Some(row) = agents.app.step(known.id(), no)? else {
        return Ok((String::new(), None));
    };
    let last = match find_attempt(&agents.app, &known, no, None) {
        Ok(last) if last.started_ms.is_some() => last,
        _ => return Ok((String::new(), Some(why_no_log(&agents.app, &known, &row)?))),
    };
    let name = known.name_of(&agents.app, no);
    let place = log_place(&agents.app, agents.app.files(), &last, &name)?;
    let path = agents.app.files().log(last.id, &name);
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = sprag_process::open_regular(&path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(bytes as u64)))?;
        let mut text = Vec::new();
        file.take(bytes as u64).read_to_end(&mut text)?;
        Ok(text)
    };
    match read() {
        Ok(text) => Ok((String::from_utf8_lossy(&text).into_owned(), place.told())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok((String::new(), place.told())),
        Err(error) => Err(ToolError::new("failed", format!("the log cannot be read: {error}"), "try again")),
    }
}

async fn run_cancel(agents: &Agents, given: OneRun) -> Done {
    let known = agents.find_run(&given.run)?;
    agents.app.cancel_run(known.id(), None).await?;
    status(agents, &known.id().to_string())
}

async fn run_skip(agents: &Agents, given: StepOfRun) -> Done {
    let known = agents.find_run(&given.run)?;
    agents.app.skip_step(known.id(), &given.step).await?;
    status(agents, &known.id().to_string())
}

async fn run_retry_now(agents: &Agents, given: StepOfRun) -> Done {
    let known = agents.find_run(&given.run)?;
    agents.app.retry_now(known.id(), &given.step).await?;
    status(agents, &known.id().to_string())
}

async fn gate_list(agents: &Agents, _: Nothing) -> Done {
    /// The largest number of live runs that are searched for questions.
    const LOOK: usize = 1_000;
    let mut told = Vec::new();
    for run in agents.app.live_runs(LOOK)? {
        if !agents.app.reaches(&agents.permit.reach, run)? {
            continue;
        }
        // Questions of child runs are listed with those runs.
        let own = gates::questions(&agents.app, run)?.into_iter().filter(|asked| asked.gate.run == run);
        told.extend(own.map(|asked| {
            let (question, choices) = (gate_text(&asked.gate), asked.choices());
            let fields = asked.fields();
            let mut told = json!({
                "run": run, "step": asked.step, "question": question, "choices": choices, "fields": fields,
            });
            let answerers = answerers_of(&asked.gate.question);
            if !answerers.is_everyone() {
                told["for"] = answerers.to_string().into();
            }
            told
        }));
    }
    Ok(json!({ "gates": told }))
}

async fn account_list(agents: &Agents, _: Nothing) -> Done {
    let mut accounts = agents.app.accounts()?;
    // Accounts belong to no pipeline: runs of all of them share one.
    accounts.retain(|_| agents.permit.reach.is_everything());
    Ok(json!({ "accounts": accounts }))
}

async fn thread_list(agents: &Agents, given: ListThreads) -> Done {
    let run = match &given.run {
        Some(run) => Some(agents.find_run(run)?.id()),
        None => None,
    };
    Ok(json!({ "threads": agents.app.threads(run, &agents.permit.reach)? }))
}

async fn thread_send(agents: &Agents, given: SendMessage) -> Done {
    let start = agents.app.talk(&agents.thread(&given.thread)?, &given.message).await?;
    let started = agents.app.start_run(start).await?;
    Ok(json!({ "run": started.run.id }))
}

async fn thread_stop(agents: &Agents, given: OneThread) -> Done {
    Ok(json!({ "run": agents.app.stop_thread(&agents.thread(&given.thread)?).await? }))
}

async fn thread_archive(agents: &Agents, given: OneThread) -> Done {
    agents.app.archive_thread(&agents.thread(&given.thread)?).await?;
    Ok(json!({ "archived": true }))
}

async fn thread_remove(agents: &Agents, given: OneThread) -> Done {
    Ok(
        json!({ "removed": true, "cancelled": agents.app.remove_thread(&agents.thread(&given.thread)?).await? }),
    )
}

async fn thread_read(agents: &Agents, given: ReadThread) -> Done {
    let name = agents.thread(&given.thread)?;
    let limit = given.limit.unwrap_or(50).clamp(1, sprag_app::MOST_EVENTS);
    let after = given.after.unwrap_or(0);
    let page = agents.app.blocking(move |app| app.transcript(&name)?.read(app, after, limit)).await?;
    Ok(json!(page))
}

async fn account_hold(agents: &Agents, given: HoldAccount) -> Done {
    let time = given.seconds.map(|seconds| Duration::from_secs(seconds.into()));
    Ok(json!(agents.app.hold_account(&given.account, time, given.reason.as_deref()).await?))
}

async fn account_release(agents: &Agents, given: OneAccount) -> Done {
    Ok(json!(agents.app.release_account(&given.account).await?))
}

async fn gate_answer(agents: &Agents, given: AnswerGate) -> Done {
    let known = agents.find_run(&given.run)?;
    let asked = gates::question(&agents.app, known.id(), given.step.as_deref())?;
    let answer = gates::Answer {
        approved: None,
        choice: Some(&given.choice),
        comment: given.comment.as_deref(),
        fields: Some(&given.fields),
        texts: None,
    };
    let answered = gates::answer(&agents.app, &asked.gate, answer).await?;
    Ok(json!({
        "run": asked.gate.run, "step": asked.step,
        "choice": answered.choice, "approved": answered.approved,
    }))
}
