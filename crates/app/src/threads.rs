//! Threads: the conversations that agent steps have with their agents, and people's messages to them.
//!
//! An agent lives only inside an execution. A message to the agent of a step that has ended is a run with one step, which
//! continues the step's session in its environment. Lease, fence, cancel and clean-up are those of any run.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};
use sprag_lifecycle::{Plan, PlanStep, RunId, StepNo, Word};
use sprag_pipeline::{AgentBudget, AgentSpec, Kind, StepSpec};
use sprag_store::{Id, Row, RunRow, StepRow, ThreadIntent, ThreadRow, thread_id};

use crate::App;
use crate::error::{Error, ErrorKind, Hint};
use crate::known::{RunWithPlan, find_run};
use crate::reach::Reach;
use crate::resume::abandon_the_dead;
use crate::runs::StartRun;

/// The name of the pipeline of a message to a thread.
pub const TALK: &str = "talk";
/// The most bytes of a message.
const MOST_MESSAGE_BYTES: usize = 256 << 10;
/// The most runs that a list of all threads looks at, from the newest on.
const MOST_RUNS: usize = 200;

/// A thread, for people and programs.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ThreadView {
    /// The name of the thread: `RUN/STEP`.
    pub thread: String,
    /// The run of its step.
    pub run: String,
    /// The name of its step.
    pub step: String,
    /// The pipeline of the run.
    pub pipeline: String,
    /// The agent, as the pipeline names it.
    pub agent: String,
    /// The status: `created`, `provisioning`, `active`, `idle` or `error`.
    pub status: &'static str,
    /// The number of turns so far.
    pub turns: u32,
    /// The run whose execution holds it; absent if none does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_by: Option<String>,
}

/// The step whose thread a person means.
struct Named {
    known: RunWithPlan,
    row: StepRow,
    name: String,
    spec: StepSpec,
    agent: AgentSpec,
}

impl App {
    /// Returns the threads of a run, or those of the newest runs, as far as the caller reaches them.
    pub fn threads(&self, run: Option<RunId>, reach: &Reach) -> Result<Vec<ThreadView>, Error> {
        let runs = match run {
            Some(run) => vec![run],
            None => {
                let listed = self.store.queries().runs(None, &[], MOST_RUNS)?;
                listed.into_iter().map(|listed| listed.id).collect()
            }
        };
        let mut threads = Vec::new();
        for run in runs {
            // A damaged run does not hide the threads of the others.
            let Ok(known) = RunWithPlan::load(self, run) else { continue };
            if !has_agents(&known.plan) || !self.reaches_row(reach, &known.run)? {
                continue;
            }
            for row in self.steps(run)? {
                let Some((_, agent)) = agent_of(&known.plan, &row) else { continue };
                if let Some(thread) = self.store.queries().thread(thread_id(run, row.no))? {
                    threads.push(view(self, &known, &row, &agent, &thread));
                }
            }
        }
        Ok(threads)
    }

    /// Returns a thread by its name, `RUN/STEP`.
    pub fn thread(&self, name: &str) -> Result<ThreadView, Error> {
        let named = self.named_thread(name)?;
        let thread = self.thread_row(&named)?;
        Ok(view(self, &named.known, &named.row, &named.agent, &thread))
    }

    /// Prepares the run that gives a person's message to the agent of a step that has ended.
    pub async fn talk(&self, name: &str, message: &str) -> Result<StartRun, Error> {
        if message.trim().is_empty() || message.len() > MOST_MESSAGE_BYTES {
            return Err(Error::invalid(format!("a message must have 1 to {MOST_MESSAGE_BYTES} bytes")));
        }
        let named = self.named_thread(name)?;
        let thread = self.thread_row(&named)?;
        let run = named.known.id();
        self.free_thread(&named.known, &named.name, thread.id).await?;
        if !named.known.run.status().is_terminal() {
            let message = format!("busy: run {run} has not ended, and its steps may use the thread");
            return Err(Error::new(ErrorKind::Refused, message).hint(Hint::WatchOrCancel(run)));
        }
        if named.row.item_of.is_some() || named.known.plan.step(named.row.node()).own_environment {
            let message =
                format!("step {} has an environment of its own, in which one cannot talk", named.name);
            return Err(Error::new(ErrorKind::Refused, message));
        }
        self.check_environment(&named.known)?;
        let inputs = BTreeMap::from([("message".to_owned(), Value::from(message))]);
        let context = talk_context(&named);
        let plan = talk_plan(named).map_err(|error| Error::failed(error.to_string()))?;
        Ok(self.new_run(plan, &inputs)?.in_context(context))
    }

    /// Refuses to use the threads of a run to which a person talks at this moment.
    pub(crate) async fn free_threads(&self, known: &RunWithPlan) -> Result<(), Error> {
        if !has_agents(&known.plan) {
            return Ok(());
        }
        for row in self.steps(known.id())? {
            if agent_of(&known.plan, &row).is_some() {
                self.free_thread(known, &known.name_of(self, row.no), thread_id(known.id(), row.no)).await?;
            }
        }
        Ok(())
    }

    /// Refuses to use a thread that another run holds. A holder whose process is gone is abandoned, and its message is
    /// not delivered.
    async fn free_thread(&self, known: &RunWithPlan, step: &str, id: Id) -> Result<(), Error> {
        let holder = |app: &App| -> Result<Option<RunId>, Error> {
            let row = app.store.queries().thread(id)?;
            let run = row.and_then(|row| row.holder).map(|holder| holder.execution.run);
            Ok(run.filter(|run| *run != known.id()))
        };
        let Some(run) = holder(self)? else { return Ok(()) };
        abandon_the_dead(self, run).await?;
        match holder(self)? {
            None => {
                self.request_cancel(run).await?;
                Ok(())
            }
            Some(run) => {
                let message = format!("busy: thread {}/{step} is in use by run {run}", known.id());
                Err(Error::new(ErrorKind::Refused, message).hint(Hint::WatchOrCancel(run)))
            }
        }
    }

    /// Stops the agent of a thread to which a person talks. Returns the run that is being cancelled.
    pub async fn stop_thread(&self, name: &str) -> Result<RunId, Error> {
        let named = self.named_thread(name)?;
        let thread = self.thread_row(&named)?;
        let Some(holder) = thread.holder else {
            return Err(Error::new(ErrorKind::Refused, format!("thread {name} is not active")));
        };
        let run = holder.execution.run;
        if run == named.known.id() {
            let message = format!("step {} of run {run} itself is running: cancel the run", named.name);
            return Err(Error::new(ErrorKind::Refused, message).hint(Hint::WatchOrCancel(run)));
        }
        self.store.person().thread_intent(thread.id, ThreadIntent::Stop).await?;
        self.request_cancel(run).await?;
        Ok(run)
    }

    /// Returns the runs in which people talked to a thread, the oldest first.
    pub fn talks(&self, name: &str) -> Result<Vec<RunRow>, Error> {
        let named = self.named_thread(name)?;
        let (run, step) = (named.known.id().to_string(), u64::from(named.row.no));
        let listed = self.store.queries().runs(None, &[], MOST_RUNS)?;
        let mut talks: Vec<RunRow> = listed.into_iter().filter_map(|listed| listed.row.ok()).collect();
        talks.retain(|row| {
            let context: Value = serde_json::from_str(&row.context).unwrap_or_default();
            let thread = &context[sprag_worker::TALKS_TO];
            thread["run"] == *run && thread["step"] == step
        });
        talks.reverse();
        Ok(talks)
    }

    fn thread_row(&self, named: &Named) -> Result<ThreadRow, Error> {
        let id: Id = thread_id(named.known.id(), named.row.no);
        self.store.queries().thread(id)?.ok_or_else(|| {
            let message = format!("the agent of step {} has not been started yet", named.name);
            Error::new(ErrorKind::NotFound, message)
        })
    }

    fn named_thread(&self, name: &str) -> Result<Named, Error> {
        let Some((run, step)) = name.split_once('/') else {
            return Err(Error::invalid(format!("{name:?} is no thread")).next("name it as RUN/STEP"));
        };
        let known = find_run(self, Some(run))?;
        let run = known.id();
        let no = known.step_no(step)?;
        let row =
            self.step(run, no)?.ok_or_else(|| Error::new(ErrorKind::NotFound, "there is no such step"))?;
        let Some((spec, agent)) = agent_of(&known.plan, &row) else {
            return Err(Error::invalid(format!("step {step} has no agent, and so no thread")));
        };
        Ok(Named { known, row, name: step.to_owned(), spec, agent })
    }

    /// Refuses to talk where the files of the run are gone.
    fn check_environment(&self, known: &RunWithPlan) -> Result<(), Error> {
        if known.plan.environment.is_none() {
            return Ok(());
        }
        let rows = self.store.queries().environments_of(known.id())?;
        let is_ready = rows.iter().any(|row| row.scope.is_none() && row.status().as_str() == "ready");
        if is_ready {
            return Ok(());
        }
        let message = format!("the environment of run {} has been removed", known.id());
        Err(Error::new(ErrorKind::Refused, message).next(
            "keep those of failed runs: `environment: { worktree: { keep: on_failure } }`; or resume the run",
        ))
    }
}

/// Whether a plan has steps with agents. Their specs are not read: a list may concern many runs.
fn has_agents(plan: &Plan) -> bool {
    plan.steps.iter().any(|step| step.spec.contains("\"agent\":"))
}

/// Returns the spec of a step and of its agent, if it has one.
fn agent_of(plan: &Plan, row: &StepRow) -> Option<(StepSpec, AgentSpec)> {
    let spec = &plan.step(row.node()).spec;
    let spec: StepSpec = serde_json::from_str(spec).ok().filter(|_| spec.contains("\"agent\":"))?;
    match &spec.kind {
        Kind::Agent(agent) => {
            let agent = (**agent).clone();
            Some((spec, agent))
        }
        _ => None,
    }
}

fn view(app: &App, known: &RunWithPlan, row: &StepRow, agent: &AgentSpec, thread: &ThreadRow) -> ThreadView {
    let step = known.name_of(app, row.no);
    ThreadView {
        thread: format!("{}/{step}", known.id()),
        run: known.id().to_string(),
        step,
        pipeline: known.run.pipeline.to_string(),
        agent: agent.agent.clone(),
        status: thread.status().as_str(),
        turns: thread.turn,
        held_by: thread.holder.map(|holder| holder.execution.run.to_string()),
    }
}

/// Returns the plan of a message: the step's agent with another prompt, and without the step's checks and outputs.
fn talk_plan(named: Named) -> Result<Plan, sprag_lifecycle::PlanError> {
    let Named { known, row, name, spec, agent } = named;
    let planned = known.plan.step(row.node());
    // Templates of the step may read other steps, which this plan does not have.
    let plain = |text: &String| !text.contains("{{");
    let agent = AgentSpec {
        prompt: "{{ inputs.message }}".to_owned(),
        prompt_file: None,
        continues: None,
        output_schema: None,
        model: agent.model.filter(plain),
        system: agent.system.filter(plain),
        budget: AgentBudget::default(),
        ..agent
    };
    let mut talk = StepSpec::new(Kind::Agent(Box::new(agent)));
    talk.env = spec.env.into_iter().filter(|(_, value)| plain(value)).collect();
    talk.dir = spec.dir.filter(plain);
    talk.timeout_ms = spec.timeout_ms;
    (talk.secrets, talk.masks, talk.agents) = (spec.secrets, spec.masks, spec.agents);
    (talk.inherit, talk.dotenv, talk.retry_here) = (spec.inherit, spec.dotenv, true);
    let mut step = PlanStep::new(name, Vec::<StepNo>::new());
    step.spec = json!(talk).to_string();
    step.queue.clone_from(&planned.queue);
    step.labels.clone_from(&planned.labels);
    step.account.clone_from(&planned.account);
    Plan::new(TALK, vec![step])
}

/// Returns the context of a message: the place in which the step worked, and the thread.
fn talk_context(named: &Named) -> Value {
    let before: Value = serde_json::from_str(&named.known.run.context).unwrap_or_default();
    let run = named.known.id().to_string();
    let mut context = json!({});
    for key in ["dir", sprag_worker::FAKE_AGENTS, "environment_of"] {
        if let Some(value) = before.get(key) {
            context[key] = value.clone();
        }
    }
    if named.known.plan.environment.is_some() {
        context["environment_of"] = run.as_str().into();
    }
    context[sprag_worker::TALKS_TO] = json!({ "run": run, "step": named.row.no, "name": named.name });
    context
}
