//! Triggers: the time from a tick to its run, the cost of rules that wait, a burst of rules with several servers, and
//! `explain` with a million events. All on a file.
//!
//! One rule is applied as a person would; the others are copies of its row.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rusqlite::Connection;
use sprag_app::App;
use tempfile::TempDir;

use crate::board::{Board, Key, Target, key, percentile};
use crate::clock::Stopwatch;
use crate::webhooks::webhooks;
use crate::{Effort, Result, files, floors};

/// The number of servers that share a burst.
const SERVERS: usize = 4;
/// The longest wait for a burst, or for the ticks of one rule.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);
/// The unit of `/proc/PID/stat`: Linux counts time of processors in hundredths of a second for programs.
const TICKS_PER_SECOND: u64 = 100;
/// The pause between two looks at the database.
const LOOK: Duration = Duration::from_millis(50);

pub(crate) async fn measure(effort: Effort) -> Result<Board> {
    let mut board = Board::default();
    for _ in 0..effort.rounds {
        latency(&mut board, effort.pick(60, 5)).await?;
        idle(&mut board, effort.pick(10_000, 1_000)).await?;
        burst(&mut board, effort.pick(10_000, 500)).await?;
        explain(&mut board, effort.pick(1_000_000, 20_000)).await?;
        webhooks(&mut board, effort.pick(10_000, 500)).await?;
    }
    let ours = key("due to run p99", "file", 1, "ms");
    board.ratio("p99 of the allowed time", &ours, &allowed(), Some(Target::AtMost(1.0)));
    board.note(
        "due to run: at most 50 ms and three syncs at p99; idle rules: no commits, 0.1 % of a core, 10 MB",
    );
    board.note("a burst: every rule once, all within 10 s; explain: 20 ms with the start of the program");
    Ok(board)
}

/// Returns the key of the time that is allowed from a tick to its run.
fn allowed() -> Key {
    key("due to run, allowed", "50 ms + 3 syncs", 1, "ms")
}

/// A store with one rule, and a connection to look into it.
pub(crate) struct Scene {
    folder: TempDir,
    app: App,
    look: Connection,
}

impl Scene {
    async fn with_rule(schedule: &str) -> Result<Scene> {
        Scene::with_source(&format!("schedule: {{ {schedule} }}")).await
    }

    pub(crate) async fn with_source(source: &str) -> Result<Scene> {
        let folder = files::scratch()?;
        let data = folder.path().join("data");
        let app = App::open(&data)?;
        let text = format!(
            "name: p\non:\n  - id: r\n    {source}\n    overlap: allow\nsteps:\n  - id: a\n    run: 'true'\n"
        );
        let pipeline = sprag_app::parse("p.yaml", &text)?;
        app.apply_rules(&pipeline, "p.yaml", folder.path(), false).await?;
        let look = Connection::open(data.join("sprag.db"))?;
        look.busy_timeout(Duration::from_secs(30))?;
        Ok(Scene { folder, app, look })
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn data(&self) -> std::path::PathBuf {
        self.folder.path().join("data")
    }

    /// Copies the rule until there are this many.
    fn copy_rules(&self, rules: usize) -> Result<()> {
        let columns: Vec<String> = self.columns("rules")?;
        let copied: Vec<String> = columns
            .iter()
            .map(|column| match column.as_str() {
                "id" => "id + n".to_owned(),
                "name" => "name || n".to_owned(),
                other => other.to_owned(),
            })
            .collect();
        self.look.execute(
            &format!(
                "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?1) \
                 INSERT INTO rules ({}) SELECT {} FROM rules, numbers WHERE name = 'p/r'",
                columns.join(", "),
                copied.join(", ")
            ),
            [rules as i64 - 1],
        )?;
        Ok(())
    }

    fn columns(&self, table: &str) -> Result<Vec<String>> {
        let mut names = self.look.prepare(&format!("SELECT name FROM pragma_table_info('{table}')"))?;
        let names = names.query_map([], |row| row.get(0))?.collect::<std::result::Result<_, _>>()?;
        Ok(names)
    }

    pub(crate) fn number(&self, sql: &str) -> Result<i64> {
        Ok(self.look.query_row(sql, [], |row| row.get(0))?)
    }

    /// Waits until a number in the database is at least this.
    pub(crate) async fn until(&self, sql: &str, least: i64) -> Result<()> {
        let watch = Stopwatch::start();
        while self.number(sql)? < least {
            if watch.elapsed() > PATIENCE {
                return Err(format!("after {PATIENCE:?} {sql} is {}", self.number(sql)?).into());
            }
            pause(LOOK).await;
        }
        Ok(())
    }

    fn server(&self) -> Result<Server> {
        self.server_at(([127, 0, 0, 1], 0).into(), &[])
    }

    /// Starts a server at this address, with these variables.
    pub(crate) fn server_at(&self, addr: SocketAddr, variables: &[(&str, &str)]) -> Result<Server> {
        let program = std::env::current_exe()?.with_file_name("sprag");
        let mut command = Command::new(program);
        command.args(["serve", "--listen", &addr.to_string(), "--no-worker"]).env("SPRAG_DATA", self.data());
        command.envs(variables.iter().copied());
        Ok(Server(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?))
    }
}

/// A server, killed when it is dropped.
pub(crate) struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Server {
    /// Returns the time of the processor that it has used.
    fn used(&self) -> Result<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id()))?;
        // The second field, the program's name, is in parentheses and may contain blanks.
        let after = stat.rsplit(')').next().unwrap_or_default();
        let field =
            |nth: usize| after.split_whitespace().nth(nth).and_then(|field| field.parse::<u64>().ok());
        let ticks = field(11).unwrap_or(0) + field(12).unwrap_or(0);
        Ok(Duration::from_millis(ticks * 1_000 / TICKS_PER_SECOND))
    }

    /// Returns its memory in MiB.
    fn memory(&self) -> Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no memory")?;
        let kib: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
        Ok(kib / 1024.0)
    }
}

/// Measures the time from a tick to the commit of its run, while nothing else happens.
async fn latency(board: &mut Board, ticks: i64) -> Result<()> {
    let scene = Scene::with_rule("every: 1s").await?;
    let sync = floors::fdatasync(scene.folder.path(), Duration::from_millis(500))?;
    let server = scene.server()?;
    // The first ticks were missed while the server started.
    scene.until("SELECT count(*) FROM enforcements", ticks + 2).await?;
    drop(server);
    let sql = "SELECT created_ms % 1000 FROM enforcements WHERE run IS NOT NULL ORDER BY created_ms LIMIT -1 OFFSET 2";
    let mut rows = scene.look.prepare(sql)?;
    let late = rows.query_map([], |row| row.get::<_, i64>(0))?.collect::<std::result::Result<Vec<_>, _>>()?;
    let mut late: Vec<Duration> = late.into_iter().map(|ms| Duration::from_millis(ms as u64)).collect();
    let p99 = percentile(&mut late, 99).as_secs_f64() * 1_000.0;
    board.add(key("due to run p50", "file", 1, "ms"), percentile(&mut late, 50).as_secs_f64() * 1_000.0);
    board.add(key("due to run p99", "file", 1, "ms"), p99);
    board.add(allowed(), 50.0 + 3.0 * sync.p50.as_secs_f64() * 1_000.0);
    Ok(())
}

/// Measures a server whose rules wait.
async fn idle(board: &mut Board, rules: usize) -> Result<()> {
    let scene = Scene::with_rule("cron: '0 0 1 1 *'").await?;
    let time = Duration::from_secs(10);
    let mut memory = Vec::new();
    for rules in [1, rules] {
        if rules > 1 {
            scene.copy_rules(rules)?;
        }
        let server = scene.server()?;
        pause(Duration::from_secs(3)).await;
        let (before, used) = (scene.number("PRAGMA data_version")?, server.used()?);
        pause(time).await;
        memory.push(server.memory()?);
        if rules > 1 {
            let share = (server.used()? - used).as_secs_f64() / time.as_secs_f64() * 100.0;
            board.add(key("idle rules, of a core", "file", rules, "%"), share);
            let commits = scene.number("PRAGMA data_version")? - before;
            board.add(key("idle rules, commits in 10 s", "file", rules, "seen"), commits as f64);
        }
    }
    board.add(key("idle rules, memory", "file", rules, "MiB more"), memory[1] - memory[0]);
    Ok(())
}

/// Measures rules that are all due in one second, with several servers.
async fn burst(board: &mut Board, rules: usize) -> Result<()> {
    // The moment is far enough ahead for the copies and the start of all servers.
    let scene = Scene::with_rule("every: 1h").await?;
    let due_ms = (scene.app.now().wall_ms / 1_000 + 12) * 1_000;
    let at: String = scene.look.query_row(
        "SELECT strftime('%Y-%m-%dT%H:%M:%SZ', ?1 / 1000, 'unixepoch')",
        [due_ms],
        |row| row.get(0),
    )?;
    drop(scene);
    let scene = Scene::with_rule(&format!("at: \"{at}\"")).await?;
    scene.copy_rules(rules)?;
    let servers: Vec<Server> = (0..SERVERS).map(|_| scene.server()).collect::<Result<_>>()?;
    let fired = "SELECT count(*) FROM enforcements WHERE run IS NOT NULL";
    scene.until(fired, rules as i64).await?;
    let last_ms = scene.number("SELECT max(created_ms) FROM enforcements")?;
    // Servers that are still busy could fire a rule twice.
    pause(Duration::from_secs(2)).await;
    drop(servers);
    let once = "SELECT count(*) FROM (SELECT rule FROM enforcements WHERE run IS NOT NULL \
                GROUP BY rule HAVING count(DISTINCT run) = 1)";
    let (runs, once) = (scene.number("SELECT count(*) FROM runs")?, scene.number(once)?);
    // Rules without exactly one run, and runs beyond those of the rules.
    let wrong = (rules as i64 - once) + (runs - rules as i64).max(0);
    board.add(
        key("burst, until the last run", "file, 4 servers", rules, "s"),
        (last_ms - due_ms) as f64 / 1_000.0,
    );
    board.add(key("burst, twice or lost", "file, 4 servers", rules, "runs"), wrong as f64);
    if wrong != 0 {
        return Err(format!("{rules} rules started {runs} runs, and {once} of them one each").into());
    }
    Ok(())
}

/// Measures `sprag explain RULE` with many events.
async fn explain(board: &mut Board, events: usize) -> Result<()> {
    let scene = Scene::with_rule("every: 1h").await?;
    let rule = scene.number("SELECT id FROM rules")?;
    let numbers = format!(
        "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {events})"
    );
    scene.look.execute_batch(&format!(
        "BEGIN; \
         {numbers} INSERT INTO deliveries (id, rule, key, kind, body, chain, received_ms) \
             SELECT n, {rule}, 'k' || n, 'tick', '{{}}', '[]', n FROM numbers; \
         {numbers} INSERT INTO enforcements (id, status, version, rule, event, generation, reason, due_ms, first_ms, created_ms) \
             SELECT n, 'skipped', 2, {rule}, n, 1, 'a reason', 0, 0, n FROM numbers; \
         COMMIT"
    ))?;
    let program = std::env::current_exe()?.with_file_name("sprag");
    let mut took = Vec::new();
    for _ in 0..20 {
        let watch = Stopwatch::start();
        let status = explained(&program, &scene.data())?;
        took.push(watch.elapsed());
        if !status {
            return Err("`sprag explain p/r` failed".into());
        }
    }
    board.add(key("explain p50", "file", events, "ms"), percentile(&mut took, 50).as_secs_f64() * 1_000.0);
    Ok(())
}

/// Waits while servers work.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures what happens in a time")]
pub(crate) async fn pause(time: Duration) {
    tokio::time::sleep(time).await;
}

fn explained(program: &Path, data: &Path) -> Result<bool> {
    let mut command = Command::new(program);
    command.args(["explain", "p/r"]).env("SPRAG_DATA", data).stdout(Stdio::null());
    Ok(command.status()?.success())
}
