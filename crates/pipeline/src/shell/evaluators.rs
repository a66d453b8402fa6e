//! Programs that evaluate their arguments or input. No value may be part of such an argument or input.
//!
//! The check considers a word of a command together with all words before it. So it need not know wrappers (`sudo`,
//! `timeout`, `xargs`, `find -exec`): every word after the name of an evaluator counts as its argument.

use super::Dialect;
use crate::spec::base_name;
use crate::template::{self, Piece};

/// The placeholder for a value in a word.
pub(super) const VALUE: char = '\u{fffc}';
/// The placeholder for the output of a substitution without values.
pub(super) const SUBSTITUTED: char = '\u{fffd}';

/// The use that a command makes of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is passed as data.
    Data,
    /// It is evaluated as code.
    Evaluated,
    /// It is the name of the command.
    Command,
    /// It is part of an argument of this program, about which nothing is known.
    PartOfArgument(String),
}

/// The arguments that a program evaluates.
#[derive(Debug, Clone, Copy)]
enum ArgumentRule {
    /// All arguments.
    All,
    /// All arguments except those after one of these options, or attached to it.
    AllBut(&'static [&'static str]),
    /// The argument after one of these options, or attached to it.
    After(&'static [&'static str]),
    /// Like `After`, unless a script comes first: arguments after a script belong to the script. The second list has
    /// options that take an argument.
    Program(&'static [&'static str], &'static [&'static str]),
    /// The first operand, unless one of the options in the first list names a file instead; also the argument after an
    /// option in the second list. The third list has options that take an argument.
    First(&'static [&'static str], &'static [&'static str], &'static [&'static str]),
    /// Every operand after the first; and the first one if the value is only a part of it.
    AfterFirst,
    /// The arguments that git passes to a shell, or reads as settings that name a command.
    Git,
}

use ArgumentRule::{After, AfterFirst, All, AllBut, First, Git, Program};

const SHELL_RULE: ArgumentRule =
    Program(&["-c", "--command"], &["-o", "-O", "+O", "--rcfile", "--init-file"]);

/// The rules per program. Names are compared without directory and version.
#[rustfmt::skip]
const ARGUMENT_RULES: &[(&[&str], ArgumentRule)] = &[
    // Builtins of shells.
    (&["eval", "trap", "let", "unset", "read", "mapfile", "readarray", "getopts", "source", "alias", "complete", "compgen", "bind", "enable", "nameref", "integer", "float"], All),
    (&["wait"], After(&["-p"])),
    // Programs that run their arguments in a shell.
    (&["ssh", "watch", "parallel", "tmux", "screen", "socat", "at", "batch", "rsh", "dsh", "pdsh"], All),
    (&["sh", "bash", "dash", "zsh", "ksh", "mksh", "ash", "fish", "xonsh", "nu"], SHELL_RULE),
    (&["su", "runuser", "flock", "script", "sg", "expect"], After(&["-c", "--command"])),
    (&["env"], After(&["-S", "--split-string"])),
    (&["git"], Git),
    (&["find"], After(&["-exec", "-execdir", "-ok", "-okdir"])),
    (&["fd", "fdfind"], After(&["-x", "-X", "--exec", "--exec-batch"])),
    (&["npm", "npx", "pnpm"], After(&["-c", "--call"])),
    (&["nix-shell"], After(&["--run", "--command"])),
    (&["nc", "ncat", "netcat"], After(&["-e", "-c", "--exec", "--sh-exec"])),
    (&["xterm", "gnome-terminal", "konsole"], After(&["-e", "-x"])),
    (&["entr"], After(&["-s"])),
    (&["rsync"], After(&["-e", "--rsh", "--rsync-path"])),
    (&["scp", "sftp"], After(&["-S", "-o"])),
    (&["tar"], After(&["-I", "--use-compress-program", "--checkpoint-action", "--to-command", "--rsh-command", "--info-script", "--new-volume-script"])),
    (&["split"], After(&["--filter"])),
    (&["sort"], After(&["--compress-program"])),
    (&["man"], After(&["-P", "--pager", "-H", "--html"])),
    (&["gdb", "lldb"], After(&["-ex", "--eval-command", "-o", "--one-line"])),
    (&["vi", "vim", "nvim", "ex", "view"], After(&["-c", "--cmd", "-S"])),
    (&["emacs"], After(&["--eval", "--execute"])),
    (&["make", "gmake", "bmake"], AllBut(&["-C", "--directory", "-j", "--jobs", "-I"])),
    // Interpreters of other languages.
    (&["python", "pypy", "ipython"], Program(&["-c"], &["-W", "-X", "-Q"])),
    (&["perl", "ruby", "lua", "luajit", "julia", "groovy", "elixir", "osascript", "ghc", "erl", "Rscript", "R", "scala", "raku", "swipl", "tclsh"], Program(&["-e", "-E", "--eval", "-eval"], &["-I", "-C", "-r", "-l"])),
    (&["node", "nodejs", "deno", "bun"], Program(&["-e", "-p", "--eval", "--print", "eval"], &["-r", "--require", "-C", "--import"])),
    (&["php"], Program(&["-r", "-R", "-B", "-E"], &["-d", "-c", "-f"])),
    (&["psql"], After(&["-c", "--command", "-v", "--set", "--variable"])),
    (&["mysql", "mariadb"], After(&["-e", "--execute"])),
    (&["sqlite", "duckdb"], AfterFirst),
    (&["awk", "gawk", "mawk", "nawk", "original-awk"], First(&["-f", "--file", "-E", "--exec"], &["-e", "--source"], &["-F", "-v", "--assign", "--field-separator"])),
    (&["sed", "gsed", "ssed"], First(&["-f", "--file"], &["-e", "--expression"], &["-l", "--line-length"])),
    (&["bc", "dc"], After(&["-e", "--expression"])),
];

/// Programs that read a program from their input unless it is given in another way.
const INTERPRETERS: [&str; 36] = [
    "sh", "bash", "dash", "zsh", "ksh", "mksh", "ash", "fish", "su", "runuser", "python", "pypy", "ipython",
    "perl", "ruby", "lua", "luajit", "julia", "node", "nodejs", "deno", "bun", "php", "psql", "mysql",
    "mariadb", "sqlite", "duckdb", "ssh", "rsh", "at", "batch", "crontab", "tclsh", "Rscript", "ghci",
];
/// Those that read their input in any case.
const ALWAYS_READ: [&str; 8] = ["psql", "mysql", "mariadb", "sqlite", "duckdb", "at", "batch", "crontab"];

/// Variables whose value a shell, or a program that it starts, evaluates.
const EVALUATED_VARIABLES: [&str; 27] = [
    "BASH_ENV",
    "ENV",
    "PROMPT_COMMAND",
    "PS0",
    "PS1",
    "PS2",
    "PS3",
    "PS4",
    "SHELLOPTS",
    "BASHOPTS",
    "LD_PRELOAD",
    "LD_AUDIT",
    "GIT_SSH_COMMAND",
    "GIT_SSH",
    "GIT_EDITOR",
    "GIT_SEQUENCE_EDITOR",
    "GIT_PAGER",
    "GIT_EXTERNAL_DIFF",
    "GIT_PROXY_COMMAND",
    "EDITOR",
    "VISUAL",
    "PAGER",
    "PERL5OPT",
    "RUBYOPT",
    "NODE_OPTIONS",
    "PYTHONSTARTUP",
    "MAKEFLAGS",
];

/// Programs that treat all text as data and start no other program with it.
const KNOWN: [&str; 66] = [
    "echo",
    "printf",
    "cat",
    "cp",
    "mv",
    "rm",
    "ln",
    "ls",
    "mkdir",
    "rmdir",
    "touch",
    "chmod",
    "chown",
    "test",
    "[",
    "true",
    "false",
    ":",
    "cd",
    "pwd",
    "export",
    "local",
    "readonly",
    "declare",
    "typeset",
    "exit",
    "return",
    "grep",
    "egrep",
    "fgrep",
    "rg",
    "head",
    "tail",
    "wc",
    "cut",
    "tr",
    "uniq",
    "tee",
    "date",
    "basename",
    "dirname",
    "realpath",
    "stat",
    "diff",
    "cmp",
    "curl",
    "wget",
    "git",
    "gh",
    "glab",
    "logger",
    "say",
    "notify-send",
    "sleep",
    "seq",
    "shift",
    "set",
    "md5sum",
    "sha256sum",
    "base64",
    "mail",
    "sendmail",
    "sort",
    "jq",
    "yq",
    "column",
];

/// Returns a program's name without directory and version: `/usr/bin/python3.11` becomes `python`.
fn program(word: &str) -> &str {
    let name = base_name(word);
    let end = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.').len();
    let end = name[..end].trim_end_matches('-').len();
    if end == 0 { name } else { &name[..end] }
}

/// Returns the name that a word assigns to, if it is `NAME=…` or `NAME+=…`.
pub(super) fn assigned(word: &str) -> Option<&str> {
    let (name, _) = word.split_once('=')?;
    let name = name.strip_suffix('+').unwrap_or(name);
    let fits = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    fits.then_some(name)
}

/// Returns the use of the value in a word of a simple command.
pub(super) fn word(words: &[&str], at: usize, dialect: Dialect) -> Verdict {
    let last = words[at];
    if assigned(last).is_some_and(|name| EVALUATED_VARIABLES.contains(&name)) {
        return Verdict::Evaluated;
    }
    match command_place(words) {
        Some(place) if place < at && builtin(&words[place..], at - place, dialect) => Verdict::Evaluated,
        Some(_) => argument(words, at),
        None => Verdict::Data,
    }
}

/// Returns the use of the value in an argument of a program.
fn argument(words: &[&str], at: usize) -> Verdict {
    let Some(place) = command_place(words).filter(|place| *place <= at) else { return Verdict::Data };
    if place == at {
        return Verdict::Command;
    }
    // Except as the command itself, a dot is a folder.
    if words[place] == "." {
        return Verdict::Evaluated;
    }
    let last = words[at];
    for runs in programs(&words[..at], place) {
        let rule = ARGUMENT_RULES
            .iter()
            .find(|(names, _)| names.contains(&program(words[runs])))
            .map(|(_, rule)| rule);
        if rule.is_some_and(|rule| evaluates(*rule, &words[runs + 1..at], last)) {
            return Verdict::Evaluated;
        }
    }
    let name = program(words[place]);
    let literal = last.chars().filter(|c| *c != VALUE);
    let looks_like_a_program = literal.clone().any(|c| c.is_whitespace() || ";|&()'\"`<>".contains(c));
    if looks_like_a_program && !KNOWN.contains(&name) && !name.contains([VALUE, SUBSTITUTED]) {
        Verdict::PartOfArgument(name.to_owned())
    } else {
        Verdict::Data
    }
}

/// Returns the indices of words that may be programs: the command, and all words after it unless it starts no programs.
fn programs(words: &[&str], place: usize) -> std::ops::Range<usize> {
    let known = words.get(place).is_some_and(|word| KNOWN.contains(&program(word)));
    place..if known { (place + 1).min(words.len()) } else { words.len() }
}

/// Returns the index of the command's name, after keywords, assignments, and words that only pass it on. Returns `None`
/// for the words of a loop or a choice.
fn command_place(words: &[&str]) -> Option<usize> {
    const KEYWORDS: [&str; 15] = [
        "if", "then", "else", "elif", "fi", "while", "until", "do", "done", "esac", "{", "}", "!", "time",
        "-p",
    ];
    const PASS_ON: [&str; 3] = ["command", "builtin", "exec"];
    let skipped =
        |word: &str| KEYWORDS.contains(&word) || PASS_ON.contains(&word) || assigned(word).is_some();
    // The header of a function: `function NAME {`.
    let header = if words.first() == Some(&"function") { 2 } else { 0 };
    let place = header + words.get(header..)?.iter().position(|word| !skipped(word))?;
    (!["for", "case", "select"].contains(&words[place])).then_some(place)
}

/// Returns whether a shell builtin evaluates the value in the word at this index. The first word is the builtin's name.
fn builtin(words: &[&str], at: usize, dialect: Dialect) -> bool {
    let (name, given, last) = (words[0], &words[1..at], words[at]);
    let counting = dialect == Dialect::Counting;
    match name {
        // A shell evaluates a reference, a number or an array element on assignment or use.
        "declare" | "typeset" | "local" | "export" | "readonly" => {
            let mut flags = given.iter().filter(|word| word.starts_with(['-', '+']));
            let typed = flags.any(|word| word.contains(['i', 'n', 'a', 'A', 'E', 'F']));
            typed || assigned(last).is_none() || counting
        }
        // The first argument may be an option: `-vNAME[…]`.
        "printf" => {
            let is_format = given.is_empty() && last.starts_with(VALUE);
            last.starts_with("-v") || given.last() == Some(&"-v") || is_format || counting
        }
        // The operator and the operand of `[ -v NAME[…] ]` may both be values.
        "test" | "[" => {
            let unary = ["-v", "-R"].iter().any(|flag| given.last() == Some(flag) || last.starts_with(flag));
            let is_operand = |words: &[&str]| words.iter().all(|word| *word == "!");
            let after_value =
                given.split_last().is_some_and(|(word, rest)| word.starts_with(VALUE) && is_operand(rest));
            let numeric = ["-eq", "-ne", "-lt", "-le", "-gt", "-ge"];
            let counts = words.iter().any(|word| numeric.contains(word));
            unary || after_value || counting && counts
        }
        "exit" | "return" | "shift" | "break" | "continue" | "ulimit" | "print" => counting,
        _ => false,
    }
}

/// Returns whether a program with this rule evaluates the last word, given the words before it.
fn evaluates(rule: ArgumentRule, given: &[&str], last: &str) -> bool {
    match rule {
        All => true,
        AllBut(data) => {
            let glued = |option: &&str| last.starts_with(*option) && last.len() > option.len();
            !given.last().is_some_and(|word| data.contains(word)) && !data.iter().any(glued)
        }
        After(options) => {
            given.last().is_some_and(|word| is_option(word, options)) || is_attached(last, options)
        }
        Program(options, with_argument) => follows_as_program(given, last, options, with_argument),
        AfterFirst => given.iter().any(|word| !word.starts_with('-')) || !last.chars().all(|c| c == VALUE),
        Git => git(given, last),
        First(files, programs, with_argument) => {
            if given.last().is_some_and(|word| is_option(word, programs)) || is_attached(last, programs) {
                return true;
            }
            let named = |word: &&&str| {
                is_option(word, files) || is_option(word, programs) || is_attached(word, files)
            };
            if given.iter().any(|word| named(&word)) || last.starts_with('-') {
                return false;
            }
            // An earlier operand was the program.
            let mut skip = false;
            for word in given {
                let argument = std::mem::replace(&mut skip, with_argument.contains(word));
                if !argument && !word.starts_with('-') {
                    return false;
                }
            }
            !skip
        }
    }
}

/// Returns whether a word is one of these options. A letter may be part of a group.
fn is_option(word: &str, options: &[&str]) -> bool {
    options.iter().any(|option| {
        let letter = option.strip_prefix('-').filter(|rest| rest.chars().count() == 1);
        let in_group =
            |letter: &str| word.starts_with('-') && !word.starts_with("--") && word.ends_with(letter);
        word == *option || letter.is_some_and(in_group)
    })
}

/// Returns whether a word is one of these options with its argument attached: `--eval=…`, `-c…`.
fn is_attached(word: &str, options: &[&str]) -> bool {
    options.iter().any(|option| {
        let rest = word.strip_prefix(option).filter(|rest| !rest.is_empty());
        rest.is_some_and(|rest| {
            option.starts_with('-') && (!option.starts_with("--") || rest.starts_with('='))
        })
    })
}

/// Returns whether the last word is the program of an interpreter, as in `sh -c PROGRAM`.
fn follows_as_program(given: &[&str], last: &str, options: &[&str], with_argument: &[&str]) -> bool {
    let (mut next, mut skip) = (false, false);
    for word in given {
        if std::mem::take(&mut skip) {
            continue;
        }
        // In `sh -xec -u PROGRAM` the letter may be anywhere in a group, and further options may follow.
        let letters =
            options.iter().filter_map(|option| option.strip_prefix('-').filter(|rest| rest.len() == 1));
        let in_group = word.starts_with('-')
            && !word.starts_with("--")
            && letters.clone().any(|letter| word.contains(letter));
        if options.contains(word) || in_group {
            next = true;
        } else if with_argument.contains(word) {
            skip = true;
        } else if !word.starts_with('-') || *word == "-" {
            // This is a script or the program itself: the words after it are its arguments.
            return false;
        }
    }
    next || is_attached(last, options)
}

fn git(given: &[&str], last: &str) -> bool {
    /// Sections of settings that name programs.
    const SECTIONS: [&str; 16] = [
        "alias",
        "core",
        "filter",
        "diff",
        "difftool",
        "merge",
        "mergetool",
        "credential",
        "pager",
        "sequence",
        "gpg",
        "include",
        "url",
        "uploadpack",
        "protocol",
        "browser",
    ];
    let mut words = given.iter();
    let mut global = None;
    let subcommand = loop {
        match words.next() {
            None => break None,
            Some(
                &word @ ("-c" | "-C" | "--git-dir" | "--work-tree" | "--exec-path" | "--config-env"
                | "--namespace"),
            ) => {
                global = Some(word);
                if words.next().is_some() {
                    global = None;
                }
            }
            Some(word) if word.starts_with('-') => {}
            Some(word) => break Some(*word),
        }
    };
    let Some(subcommand) = subcommand else {
        return matches!(global, Some("-c" | "--exec-path" | "--config-env"))
            || is_attached(last, &["-c", "--exec-path", "--config-env"]);
    };
    let rest: Vec<&str> = words.copied().collect();
    let after = |options: &[&str]| {
        rest.last().is_some_and(|word| is_option(word, options)) || is_attached(last, options)
    };
    match subcommand {
        "rebase" | "difftool" => after(&["-x", "--exec", "--extcmd"]),
        "bisect" => rest.contains(&"run"),
        "submodule" => rest.contains(&"foreach"),
        "filter-branch" => true,
        "clone" | "fetch" | "pull" | "push" | "ls-remote" => {
            after(&["--upload-pack", "--receive-pack", "--exec", "-u"]) && subcommand != "push"
                || after(&["--receive-pack", "--exec", "-c", "--config"])
        }
        "config" => {
            rest.iter().any(|word| SECTIONS.contains(&word.split('.').next().unwrap_or_default()))
                || rest.iter().all(|word| word.starts_with('-'))
        }
        _ => false,
    }
}

/// Returns whether a command reads a program from its input.
pub(super) fn reads_program(words: &[&str]) -> bool {
    let Some(place) = command_place(words) else { return false };
    // The first interpreter decides, because the words after it are its arguments.
    let first = programs(words, place).find(|place| INTERPRETERS.contains(&program(words[*place])));
    first.is_some_and(|place| interprets_input(words[place], &words[place + 1..])) || replaces(words, place)
}

fn interprets_input(word: &str, given: &[&str]) -> bool {
    let name = program(word);
    if !INTERPRETERS.contains(&name) {
        return false;
    }
    let with_argument: &[&str] = match name {
        "ssh" | "rsh" => &[
            "-p", "-i", "-l", "-o", "-F", "-J", "-L", "-R", "-D", "-E", "-b", "-c", "-e", "-m", "-S", "-W",
            "-w",
        ],
        _ => &["-o", "-O", "-W", "-X", "-I", "-r", "--rcfile", "--init-file"],
    };
    let rule = ARGUMENT_RULES.iter().find(|(names, _)| names.contains(&name)).map(|(_, rule)| *rule);
    let program_at = match rule {
        Some(After(options)) => {
            given.iter().position(|word| is_option(word, options) || is_attached(word, options))
        }
        Some(Program(options, with_argument)) => (0..given.len())
            .find(|end| follows_as_program(&given[..*end], given[*end], options, with_argument)),
        _ => None,
    };
    let is_given = program_at.is_some();
    if let Some(at) = program_at.filter(|_| !["su", "runuser"].contains(&name)) {
        // The program decides about its input, unless it starts another interpreter or evaluates its input. `sh -c
        // PROGRAM sh` names itself, which starts nothing as long as the program does not use `$0`.
        let names_itself = |place: usize| place == at + 1 && !given[at].contains("$0");
        let looked_at = given.iter().enumerate().filter(|(place, _)| !names_itself(*place));
        let mut words =
            looked_at.flat_map(|(_, word)| word.split(|c: char| !c.is_alphanumeric() && !"._-".contains(c)));
        return words.any(|word| {
            INTERPRETERS.contains(&program(word))
                || ["eval", "exec", "source", "system", "popen"].contains(&word)
        });
    }
    let mut operands = Vec::new();
    let mut skip = false;
    for word in given {
        if std::mem::replace(&mut skip, with_argument.contains(word)) {
            skip = false;
        } else if !word.starts_with('-') || ["-", "-s"].contains(word) {
            operands.push(*word);
        }
    }
    let from_input = |word: &&str| ["-", "-s", "/dev/stdin", "/dev/fd/0"].contains(word);
    match name {
        _ if ALWAYS_READ.contains(&name) => true,
        // A host, optionally followed by a command.
        "ssh" | "rsh" => operands.len() <= 1 || interprets_input(operands[1], &operands[2..]),
        "su" | "runuser" => !is_given,
        _ => operands.first().is_none_or(from_input),
    }
}

/// Returns whether `xargs` makes its input part of a program: `xargs -I{} sh -c 'echo {}'`.
fn replaces(words: &[&str], place: usize) -> bool {
    let Some(xargs) = programs(words, place).find(|place| program(words[*place]) == "xargs") else {
        return false;
    };
    let given = &words[xargs + 1..];
    let replaces =
        given.iter().any(|word| ["-I", "-i", "--replace", "-J"].iter().any(|flag| word.starts_with(flag)));
    let evaluators = |word: &&str| {
        ARGUMENT_RULES
            .iter()
            .any(|(names, rule)| names.contains(&program(word)) && (replaces || matches!(rule, All)))
    };
    given.iter().any(evaluators)
}

/// Returns whether a command declares variables that evaluate what is assigned to them.
pub(super) fn declares_integers(words: &[&str]) -> bool {
    let Some(place) = command_place(words) else { return false };
    let flags = words[place + 1..].iter().filter(|word| word.starts_with('-'));
    match words[place] {
        "declare" | "typeset" | "local" | "readonly" => flags.clone().any(|word| word.contains(['i', 'n'])),
        "integer" | "nameref" | "float" => true,
        _ => false,
    }
}

/// Returns the number of compound commands that start with these words.
pub(super) fn compounds_opened(words: &[&str]) -> usize {
    const OPENS: [&str; 7] = ["{", "if", "while", "until", "for", "case", "select"];
    const PASSES: [&str; 6] = ["then", "do", "else", "elif", "!", "time"];
    let leading = words.iter().take_while(|word| OPENS.contains(word) || PASSES.contains(word));
    leading.filter(|word| OPENS.contains(word)).count()
}

/// Returns whether a compound command ends with these words.
pub(super) fn closes_compound(words: &[&str]) -> bool {
    words.first().is_some_and(|word| ["}", "fi", "done", "esac"].contains(word))
}

/// Returns the use of the values in each argument of a program that is started without a shell.
pub(crate) fn arguments(argv: &[&str]) -> Vec<(usize, Verdict)> {
    // Literal text contains the placeholder character only if an author wrote it on purpose.
    let marked: Vec<String> = argv
        .iter()
        .map(|argument| match template::split(argument) {
            Ok(pieces) => pieces
                .iter()
                .map(|piece| match piece {
                    Piece::Literal(text) => text.replace(VALUE, ""),
                    Piece::Value(_) => VALUE.to_string(),
                })
                .collect(),
            Err(_) => (*argument).to_owned(),
        })
        .collect();
    let texts: Vec<&str> = marked.iter().map(String::as_str).collect();
    let valued = texts.iter().enumerate().filter(|(_, text)| text.contains(VALUE));
    valued.map(|(at, _)| (at, argument(&texts, at))).collect()
}
