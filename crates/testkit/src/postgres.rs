//! A private PostgreSQL server for tests: real, with `fsync` on, and removed with the process that started it.
//!
//! ```text
//!   test ──stdin──▶ sh: starts postgres, crashes it on request; when stdin ends, stops it and removes its data
//! ```
//!
//! So no test leaves anything behind, even if it is killed.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crate::certificates::make_certificates;

/// The time within which a server must accept connections.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// The script that starts, stops and removes the server. It kills processes only by their ids.
const KEEPER: &str = r#"
pg=
while read -r word; do
  case $word in
    start) $AS "$BIN/postgres" -D "$DIR/data" >>"$DIR/log" 2>&1 & pg=$! ;;
    crash)
      # Stopped first, so that it starts no more; its memory is free when the last of them is gone.
      kill -STOP "$pg"
      all=$(cat "/proc/$pg/task/$pg/children")
      kill -9 "$pg" $all 2>"$DIR/killed"
      wait "$pg"
      for one in $all; do
        tries=0
        while [ -e "/proc/$one" ] && ! grep -q '^State:.Z' "/proc/$one/status" && [ $tries -lt 500 ]; do
          tries=$((tries + 1))
          sleep 0.01
        done
      done
      pg= ;;
    stop) kill -INT "$pg"; wait "$pg"; pg= ;;
    # The first one last to go on: it starts others in the place of those that end.
    pause) kill -STOP "$pg"; kill -STOP $(cat "/proc/$pg/task/$pg/children") ;;
    resume) kill -CONT $(cat "/proc/$pg/task/$pg/children"); kill -CONT "$pg" ;;
  esac
  echo "$word"
done
if [ -n "$pg" ]; then kill -CONT $(cat "/proc/$pg/task/$pg/children"); kill -CONT "$pg"; kill -INT "$pg"; wait "$pg"; fi
rm -rf "$DIR"
"#;

/// A running server with a temporary data folder.
pub struct Postgres {
    folder: PathBuf,
    bin: PathBuf,
    port: u16,
    keeper: Mutex<(ChildStdin, BufReader<ChildStdout>)>,
    process: Mutex<Child>,
    schemas: AtomicU64,
}

/// A private schema of a server.
#[derive(Debug, Clone)]
pub struct Database {
    /// The URL through the server's socket, without a password.
    pub url: String,
    /// The URL through loopback TCP, with a password.
    pub tcp_url: String,
    /// The name of the schema.
    pub schema: String,
}

impl Postgres {
    /// Returns the shared server of this process, and starts it on the first call.
    pub fn shared() -> &'static Postgres {
        static SERVER: OnceLock<Postgres> = OnceLock::new();
        SERVER.get_or_init(|| Postgres::start(&[]))
    }

    /// Starts a server with these settings in addition to the defaults.
    ///
    /// # Panics
    ///
    /// If PostgreSQL is not installed or does not start.
    pub fn start(settings: &[&str]) -> Postgres {
        Postgres::prepared(settings, |_, _| {})
    }

    /// Starts a server with TLS and a certificate for 127.0.0.1 that [`Postgres::authority`] has signed.
    ///
    /// # Panics
    ///
    /// If PostgreSQL or openssl is not installed.
    pub fn start_encrypted() -> Postgres {
        let settings = ["ssl = on", "ssl_cert_file = 'server.crt'", "ssl_key_file = 'server.key'"];
        Postgres::prepared(&settings, |as_user, data| {
            make_certificates(as_words(as_user, Path::new("sh")), data);
        })
    }

    /// Returns the path of the certificate of the authority that signed the server's certificate.
    pub fn authority(&self) -> PathBuf {
        self.folder.join("data/ca.crt")
    }

    /// Starts a server with these settings, in a data folder that `prepare` has filled.
    fn prepared(settings: &[&str], prepare: impl FnOnce(&[String], &Path)) -> Postgres {
        let bin = find_programs();
        let folder = tempfile::Builder::new().prefix("sprag-pg-").tempdir().expect("a folder").keep();
        let as_user = give_to_user(&folder);
        let password = folder.join("password");
        std::fs::write(&password, "hush").expect("a file");
        run(as_words(&as_user, &bin.join("initdb"))
            .args(["-U", "sprag", "-E", "UTF8", "--no-locale"])
            .args(["--no-sync", "--auth-local=trust", "--auth-host=scram-sha-256", "--pwfile"])
            .arg(&password)
            .arg("-D")
            .arg(folder.join("data")));
        prepare(&as_user, &folder.join("data"));
        let port = free_port();
        let mut conf = format!(
            "listen_addresses = '127.0.0.1'\nport = {port}\nunix_socket_directories = '{}'\n\
             max_connections = 200\nshared_buffers = 64MB\nfsync = on\nsynchronous_commit = on\n",
            folder.display()
        );
        for setting in settings {
            conf.push_str(setting);
            conf.push('\n');
        }
        let file = folder.join("data/postgresql.conf");
        std::fs::write(&file, conf).expect("the settings are written");
        let mut process = Command::new("sh")
            .args(["-c", KEEPER])
            .env("AS", as_user.join(" "))
            .env("BIN", &bin)
            .env("DIR", &folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell");
        let stdin = process.stdin.take().expect("a pipe");
        let stdout = BufReader::new(process.stdout.take().expect("a pipe"));
        let server = Postgres {
            folder,
            bin,
            port,
            keeper: Mutex::new((stdin, stdout)),
            process: Mutex::new(process),
            schemas: AtomicU64::new(0),
        };
        server.start_again();
        server
    }

    fn command_keeper(&self, word: &str) {
        let mut keeper = self.keeper.lock().unwrap_or_else(PoisonError::into_inner);
        writeln!(keeper.0, "{word}").expect("the keeper reads its input");
        let mut reply = String::new();
        keeper.1.read_line(&mut reply).expect("the keeper answers");
        assert_eq!(reply.trim(), word, "the keeper of PostgreSQL: {}", self.log());
    }

    /// Kills the server and all its processes at once (SIGKILL).
    pub fn crash(&self) {
        self.command_keeper("crash");
    }

    /// Stops the server, as an operator would.
    pub fn stop(&self) {
        self.command_keeper("stop");
    }

    /// Suspends all its processes (SIGSTOP): connections stay open, and nothing is answered.
    pub fn pause(&self) {
        self.command_keeper("pause");
    }

    /// Continues its processes after [`Postgres::pause`].
    pub fn resume(&self) {
        self.command_keeper("resume");
    }

    /// Starts the server after it was killed or stopped, and waits until it answers.
    pub fn start_again(&self) {
        self.command_keeper("start");
        const LOOK_EVERY: Duration = Duration::from_millis(20);
        for _ in 0..START_TIMEOUT.as_millis() / LOOK_EVERY.as_millis() {
            if self.answers() {
                return;
            }
            std::thread::park_timeout(LOOK_EVERY);
        }
        panic!("PostgreSQL does not start: {}", self.log());
    }

    fn answers(&self) -> bool {
        let mut asked = Command::new(self.bin.join("pg_isready"));
        asked.arg("-q").arg("-h").arg(&self.folder).arg("-p").arg(self.port.to_string());
        asked.status().is_ok_and(|status| status.success())
    }

    /// Returns the server's log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// Returns the loopback address on which the server listens.
    pub fn address(&self) -> std::net::SocketAddr {
        ([127, 0, 0, 1], self.port).into()
    }

    /// Returns an empty schema for one caller alone.
    pub fn database(&self) -> Database {
        let nth = self.schemas.fetch_add(1, Ordering::Relaxed);
        let schema = format!("t{}_{nth}", std::process::id());
        self.sql(&format!("CREATE SCHEMA {schema}"));
        let socket = self.folder.display().to_string().replace('/', "%2F");
        let options = format!("options=-csearch_path%3D{schema}");
        Database {
            url: format!("postgres://sprag@{socket}:{}/postgres?{options}", self.port),
            tcp_url: format!("postgres://sprag:hush@127.0.0.1:{}/postgres?{options}", self.port),
            schema,
        }
    }

    /// Creates a separate database for programs that make their own schemas. Returns its name, and its URL through
    /// loopback.
    pub fn whole_database(&self) -> (String, String) {
        let nth = self.schemas.fetch_add(1, Ordering::Relaxed);
        let name = format!("d{}_{nth}", std::process::id());
        self.sql(&format!("CREATE DATABASE {name}"));
        let url = format!("postgres://sprag:hush@127.0.0.1:{}/{name}", self.port);
        (name, url)
    }

    /// Returns a copy of such a database that no client uses: its name, and its URL through loopback.
    ///
    /// # Errors
    ///
    /// The message of PostgreSQL, if a client is still connected.
    pub fn copy_of(&self, database: &str) -> Result<(String, String), String> {
        let nth = self.schemas.fetch_add(1, Ordering::Relaxed);
        let name = format!("d{}_{nth}", std::process::id());
        self.try_sql(&format!("CREATE DATABASE {name} TEMPLATE {database}"))?;
        let url = format!("postgres://sprag:hush@127.0.0.1:{}/{name}", self.port);
        Ok((name, url))
    }

    /// Drops such a database and disconnects its clients.
    pub fn drop_database(&self, name: &str) {
        self.sql(&format!("DROP DATABASE {name} WITH (FORCE)"));
    }

    /// Measures the server's limit: single-row updates per second by this many clients, each in its own commit.
    pub fn updates_per_second(&self, clients: usize, seconds: u32) -> f64 {
        let table = "CREATE SCHEMA IF NOT EXISTS floor; CREATE TABLE IF NOT EXISTS floor.counters \
                     (id BIGINT PRIMARY KEY, n BIGINT NOT NULL) WITH (fillfactor = 10); \
                     INSERT INTO floor.counters SELECT i, 0 FROM generate_series(1, 1000) AS i \
                     ON CONFLICT DO NOTHING";
        self.sql(table);
        let script = self.folder.join("floor.sql");
        std::fs::write(&script, "UPDATE floor.counters SET n = n + 1 WHERE id = :client_id + 1;\n")
            .expect("a file");
        let output = Command::new(self.bin.join("pgbench"))
            .args([
                "-n",
                "-M",
                "prepared",
                "-U",
                "sprag",
                "-c",
                &clients.to_string(),
                "-T",
                &seconds.to_string(),
            ])
            .arg("-h")
            .arg(&self.folder)
            .arg("-p")
            .arg(self.port.to_string())
            .arg("-f")
            .arg(&script)
            .arg("postgres")
            .output()
            .expect("pgbench comes with PostgreSQL");
        let output = String::from_utf8_lossy(&output.stdout).into_owned();
        let line =
            output.lines().find(|line| line.starts_with("tps = ")).unwrap_or_else(|| panic!("{output}"));
        line["tps = ".len()..].split(' ').next().and_then(|number| number.parse().ok()).expect("a number")
    }

    /// Runs a script as the database owner and returns its output. Panics if a statement fails.
    pub fn sql(&self, script: &str) -> String {
        self.try_sql(script).unwrap_or_else(|error| panic!("{script}: {error}"))
    }

    /// Runs a script as the database owner and returns its output.
    ///
    /// # Errors
    ///
    /// The message of PostgreSQL if a statement fails.
    pub fn try_sql(&self, script: &str) -> Result<String, String> {
        self.try_sql_in("postgres", script)
    }

    /// Runs a script in a database of [`Self::whole_database`] and returns its output. Panics if a statement fails.
    pub fn sql_in(&self, database: &str, script: &str) -> String {
        self.try_sql_in(database, script).unwrap_or_else(|error| panic!("{script}: {error}"))
    }

    fn try_sql_in(&self, database: &str, script: &str) -> Result<String, String> {
        let output = Command::new(self.bin.join("psql"))
            .args([
                "-X",
                "-q",
                "-t",
                "-A",
                "-v",
                "ON_ERROR_STOP=1",
                "-U",
                "sprag",
                "-d",
                database,
                "-c",
                script,
            ])
            .arg("-h")
            .arg(&self.folder)
            .arg("-p")
            .arg(self.port.to_string())
            .output()
            .map_err(|error| error.to_string())?;
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
        }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        // The keeper cleans up when its input ends.
        let (read, write) = std::io::pipe().expect("a pipe");
        drop(read);
        let keeper = self.keeper.get_mut().unwrap_or_else(PoisonError::into_inner);
        keeper.0 = ChildStdin::from(std::os::fd::OwnedFd::from(write));
        let _ = process.wait();
    }
}

/// Returns the folder of PostgreSQL's programs, the newest if there are several.
fn find_programs() -> PathBuf {
    let mut found: Vec<(u32, PathBuf)> = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path().join("bin"))))
        .filter(|(_, bin)| bin.join("postgres").exists())
        .collect();
    found.sort();
    if let Some((_, bin)) = found.pop() {
        return bin;
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .find(|folder| folder.join("postgres").exists() && folder.join("initdb").exists())
        .expect("the tests need PostgreSQL: install it (Debian: apt-get install postgresql), or use `cargo xtask test`")
}

/// Gives the folder to an ordinary user, because PostgreSQL does not run as root. Returns the command prefix that
/// switches to that user.
fn give_to_user(folder: &Path) -> Vec<String> {
    use std::os::unix::fs::MetadataExt;
    if std::fs::metadata(folder).expect("the folder was just made").uid() != 0 {
        return Vec::new();
    }
    let known = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let user = |name: &str| {
        let line = known.lines().find(|line| line.split(':').next() == Some(name))?;
        let mut numbers = line.split(':').skip(2).map(|number| number.parse::<u32>().ok());
        Some((numbers.next()??, numbers.next()??))
    };
    let (uid, gid) = user("postgres").or_else(|| user("nobody")).expect("a user that is not root");
    std::os::unix::fs::chown(folder, Some(uid), Some(gid)).expect("root may give it away");
    ["setpriv".to_owned(), format!("--reuid={uid}"), format!("--regid={gid}"), "--clear-groups".into()].into()
}

fn as_words(as_user: &[String], program: &Path) -> Command {
    match as_user.split_first() {
        None => Command::new(program),
        Some((first, rest)) => {
            let mut command = Command::new(first);
            command.args(rest).arg(program);
            command
        }
    }
}

fn run(command: &mut Command) {
    let output = command.output().expect("the program is there");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Returns a port that is free at this moment.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}
