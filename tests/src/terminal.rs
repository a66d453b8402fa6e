//! A `sprag` process on a terminal of 80 columns and 24 rows, which `script` (util-linux) makes.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::sandbox::Sandbox;
use crate::wait::{SOON, within};

/// A process that has a terminal.
pub struct Terminal {
    child: Child,
    keyboard: Option<ChildStdin>,
    screen: PathBuf,
    /// The file that has the name of the terminal's device.
    device: PathBuf,
}

impl Sandbox {
    /// Starts `sprag` on a terminal; `no` tells apart several of one test.
    pub fn on_terminal<A: AsRef<OsStr>>(&self, no: u32, args: impl IntoIterator<Item = A>) -> Terminal {
        self.on_terminal_with(no, &[], args)
    }

    /// The same, with these variables.
    pub fn on_terminal_with<A: AsRef<OsStr>>(
        &self,
        no: u32,
        variables: &[(&str, &str)],
        args: impl IntoIterator<Item = A>,
    ) -> Terminal {
        self.terminal(no, "-echo", variables, args)
    }

    /// Starts `sprag` on a terminal that shows what is typed, as a person's does.
    pub fn on_echoing_terminal<A: AsRef<OsStr>>(
        &self,
        no: u32,
        args: impl IntoIterator<Item = A>,
    ) -> Terminal {
        self.terminal(no, "echo", &[], args)
    }

    /// Runs lines of bash on a terminal, with a job for each command as at a prompt. `sprag` is the program under test.
    pub fn bash_on_terminal(&self, no: u32, dir: &Path, lines: &str) -> Terminal {
        let own = self.command(Vec::<String>::new());
        let folder = Path::new(own.get_program()).parent().expect("a folder").to_owned();
        let path = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}:{path}", folder.display());
        let mut shell = Command::new("bash");
        shell.args(["-c", &format!("set -m\n{lines}")]);
        shell.envs(own.get_envs().filter_map(|(name, value)| Some((name, value?)))).env("PATH", path);
        self.terminal_of(no, "-echo", &shell, dir)
    }

    fn terminal<A: AsRef<OsStr>>(
        &self,
        no: u32,
        echo: &str,
        variables: &[(&str, &str)],
        args: impl IntoIterator<Item = A>,
    ) -> Terminal {
        let mut plain = self.command(args);
        plain.envs(variables.iter().copied());
        self.terminal_of(no, echo, &plain, &self.path(""))
    }

    fn terminal_of(&self, no: u32, echo: &str, plain: &Command, dir: &Path) -> Terminal {
        let quoted = |word: &OsStr| format!("'{}'", word.to_string_lossy().replace('\'', "'\\''"));
        let words: Vec<String> =
            std::iter::once(plain.get_program()).chain(plain.get_args()).map(quoted).collect();
        let screen = self.path(&format!("screen.{no}"));
        let device = self.path(&format!("device.{no}"));
        let tty = quoted(device.as_os_str());
        let line = format!("stty cols 80 rows 24 {echo}; tty > {tty}; exec {}", words.join(" "));
        let mut command = Command::new("script");
        command.args(["--quiet", "--return", "--flush", "--command", &line, "/dev/null"]);
        command.current_dir(dir).env("TERM", "xterm").env("SHELL", "/bin/sh");
        for (name, value) in plain.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.stdin(Stdio::piped()).stdout(File::create(&screen).expect("a file")).stderr(Stdio::null());
        let mut child = command.spawn().expect("`script` of util-linux is there");
        let keyboard = child.stdin.take();
        Terminal { child, keyboard, screen, device }
    }
}

impl Terminal {
    /// Everything that was written to the terminal until now.
    pub fn shown(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.screen).unwrap_or_default()).replace("\r\n", "\n")
    }

    /// Waits until these words were written.
    #[track_caller]
    pub fn shows(&self, words: &str) {
        let found = within(SOON, || self.shown().contains(words).then_some(()));
        assert!(found.is_some(), "{words:?} is not in {:?}", self.shown());
    }

    /// Types a text; `\u{3}` is Ctrl-C.
    pub fn types(&mut self, text: &str) {
        let keyboard = self.keyboard.as_mut().expect("a keyboard");
        keyboard.write_all(text.as_bytes()).and_then(|()| keyboard.flush()).expect("it takes keys");
    }

    /// Makes the terminal narrower or wider.
    pub fn resize(&self, columns: u32) {
        let device =
            within(SOON, || fs::read_to_string(&self.device).ok().filter(|name| name.ends_with('\n')));
        let device = device.expect("a device");
        let columns = columns.to_string();
        let args = ["-F", device.trim(), "cols", &columns];
        let resized = Command::new("stty").args(args).status().expect("`stty` is there");
        assert!(resized.success(), "{args:?}");
    }

    /// Waits for the end of the process; its exit code, and everything that it wrote.
    #[track_caller]
    pub fn finish(mut self) -> (i32, String) {
        let ended = within(SOON, || self.child.try_wait().expect("a child"));
        let code = ended.unwrap_or_else(|| panic!("it does not end: {:?}", self.shown())).code();
        (code.unwrap_or(-1), self.shown())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        drop(self.keyboard.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
