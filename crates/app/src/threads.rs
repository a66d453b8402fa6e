//! Threads: the conversations that agent steps have with their agents, and people's messages to them.
//!
//! An agent lives only inside an execution. A message to the agent of a step that has ended is a run with one step, which
//! continues the step's session in its environment. Lease, fence, cancel and clean-up are those of any run.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};
use sprag_lifecycle::{ExecutionId, Plan, PlanAccount, PlanStep, Policy, RunId, StepNo, Word, mutant};
use sprag_pipeline::{AgentBudget, AgentSpec, Kind, StepSpec};
use sprag_store::{Id, Row, RunRow, StepRow, ThreadIntent, ThreadRow, account_id, thread_id};

use crate::App;
use crate::conversation::Spent;
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
    /// The tokens that its finished turns used, as far as the agent reports them. In a list, without people's messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// The price of these turns in US dollars, as far as the agent reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
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
            let executions = self.executions(run)?;
            for row in self.steps(run)? {
                let Some((_, agent)) = self.agent_of(&known, &row)? else { continue };
                let thread = self.store.queries().thread(thread_id(run, row.no))?;
                if let Some(thread) = thread.filter(|thread| !thread.archived && !thread.deleted) {
                    let of_step = executions.iter().filter(|execution| execution.id.step == row.no);
                    let spent = of_step.map(Spent::of).fold(Spent::default(), Spent::plus);
                    threads.push(view(self, &known, &row, &agent, &thread, spent));
                }
            }
        }
        Ok(threads)
    }

    /// Returns a thread by its name, `RUN/STEP`.
    pub fn thread(&self, name: &str) -> Result<ThreadView, Error> {
        let named = self.named_thread(name)?;
        let thread = self.thread_row(&named)?;
        let executions = self.executions(named.known.id())?;
        let of_step = executions.iter().filter(|execution| execution.id.step == named.row.no);
        let spent = of_step.map(Spent::of).fold(Spent::default(), Spent::plus);
        Ok(view(self, &named.known, &named.row, &named.agent, &thread, spent))
    }

    /// Returns a thread by its name, without what it used, and the prompt of its step.
    pub(crate) fn thread_and_prompt(&self, name: &str) -> Result<(ThreadView, String), Error> {
        let named = self.named_thread(name)?;
        let thread = self.thread_row(&named)?;
        let view = view(self, &named.known, &named.row, &named.agent, &thread, Spent::default());
        Ok((view, named.agent.prompt))
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
        self.refuse_live(&named)?;
        if thread.archived || thread.deleted {
            let how = if thread.deleted { "removed" } else { "archived" };
            let message = format!("thread {run}/{} was {how}: it takes no further messages", named.name);
            return Err(Error::new(ErrorKind::Refused, message));
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
            if planned_agent(&known.plan, &row).is_some() {
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

    /// Archives a thread: it takes no further turns, and lists leave it out. Refused while an agent works in it.
    pub async fn archive_thread(&self, name: &str) -> Result<(), Error> {
        let named = self.named_thread(name)?;
        let thread = self.thread_row(&named)?;
        self.free_thread(&named.known, &named.name, thread.id).await?;
        self.refuse_live(&named)?;
        self.store.person().thread_intent(thread.id, ThreadIntent::Archive).await?;
        Ok(())
    }

    /// Removes a thread: an agent that answers a message in it is stopped, and it takes no further turns. Returns the run
    /// that is being cancelled, if there is one.
    pub async fn remove_thread(&self, name: &str) -> Result<Option<RunId>, Error> {
        let named = self.named_thread(name)?;
        let thread = self.thread_row(&named)?;
        self.refuse_live(&named)?;
        // The request comes first: a turn that starts meanwhile finds it.
        self.store.person().thread_intent(thread.id, ThreadIntent::Delete).await?;
        let holder = self.store.queries().thread(thread.id)?.and_then(|row| row.holder);
        let run = holder.map(|holder| holder.execution.run);
        if let Some(run) = run {
            abandon_the_dead(self, run).await?;
            self.request_cancel(run).await?;
        }
        Ok(run)
    }

    /// Refuses to end the thread of a run that needs it.
    fn refuse_live(&self, named: &Named) -> Result<(), Error> {
        let run = named.known.id();
        if named.known.run.status().is_terminal() {
            return Ok(());
        }
        let message = format!("busy: run {run} has not ended, and its steps may use the thread");
        Err(Error::new(ErrorKind::Refused, message).hint(Hint::WatchOrCancel(run)))
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

    /// Returns the spec of a step and of the agent that has worked on it last, if it has one.
    fn agent_of(&self, known: &RunWithPlan, row: &StepRow) -> Result<Option<(StepSpec, AgentSpec)>, Error> {
        let Some((spec, agent)) = planned_agent(&known.plan, row) else { return Ok(None) };
        let planned = known.plan.step(row.node()).account.as_ref();
        let fallbacks = planned.map(|account| account.fallbacks.as_slice()).unwrap_or_default();
        if fallbacks.is_empty() {
            return Ok(Some((spec, agent)));
        }
        let id = ExecutionId { run: known.id(), step: row.no, attempt: row.attempt };
        let account = self.store.queries().execution(id)?.and_then(|execution| execution.account);
        let stand_in = fallbacks.iter().find(|other| account == Some(account_id(&other.account)));
        let agent = match stand_in {
            // The model is one of the step's own agent.
            Some(other) => {
                AgentSpec { agent: other.agent.clone(), model: None, fallback: Vec::new(), ..agent }
            }
            None => agent,
        };
        Ok(Some((spec, agent)))
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
        let Some((spec, agent)) = self.agent_of(&known, &row)? else {
            return Err(Error::invalid(format!("step {step} has no agent, and so no thread")));
        };
        Ok(Named { known, row, name: step.to_owned(), spec, agent })
    }

    /// Returns the run and the step of a thread.
    pub(crate) fn step_of_thread(&self, name: &str) -> Result<(RunId, StepNo), Error> {
        let named = self.named_thread(name)?;
        Ok((named.known.id(), named.row.no))
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

/// Returns the spec of a step and of its agent, if it has one, as they are planned.
fn planned_agent(plan: &Plan, row: &StepRow) -> Option<(StepSpec, AgentSpec)> {
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

fn view(
    app: &App,
    known: &RunWithPlan,
    row: &StepRow,
    agent: &AgentSpec,
    thread: &ThreadRow,
    spent: Spent,
) -> ThreadView {
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
        tokens: spent.tokens,
        cost_usd: spent.cost_usd,
    }
}

/// Returns the plan of a message: the step's agent with another prompt, and without the step's checks and outputs.
fn talk_plan(named: Named) -> Result<Plan, sprag_lifecycle::PlanError> {
    let Named { known, row, name, spec, agent } = named;
    let planned = known.plan.step(row.node());
    // Templates of the step may read other steps, which this plan does not have.
    let plain = |text: &String| !text.contains("{{");
    let speaker = agent.agent.clone();
    let agent = AgentSpec {
        prompt: "{{ inputs.message }}".to_owned(),
        prompt_file: None,
        continues: None,
        output_schema: None,
        model: agent.model.filter(plain),
        system: agent.system.filter(plain),
        board: agent.board.filter(plain),
        budget: AgentBudget::default(),
        fallback: Vec::new(),
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
    step.policy = talk_policy();
    step.queue.clone_from(&planned.queue);
    step.labels.clone_from(&planned.labels);
    step.account = planned.account.clone().map(|account| {
        let other = account.fallbacks.iter().find(|other| other.agent == speaker);
        let (name, max_parallel) = match other {
            Some(other) => (other.account.clone(), other.max_parallel),
            None => (account.name, account.max_parallel),
        };
        PlanAccount { name, max_parallel, longest_wait_ms: account.longest_wait_ms, fallbacks: Vec::new() }
    });
    Plan::new(TALK, vec![step])
}

/// Returns the policy of a message: it is sent once. Whether a lost worker has delivered it cannot be known, so the message
/// counts as not delivered, and the person decides.
pub fn talk_policy() -> Policy {
    Policy { at_most_once: !mutant!(MessageTwice), ..Policy::default() }
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
