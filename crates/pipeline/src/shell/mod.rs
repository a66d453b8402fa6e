//! The position of a value in a shell command, so that the value is passed as data and never read as a command.
//!
//! A value is never written into the command. It is put into an environment variable, and the command contains the
//! variable's expansion, which a shell does not parse again. So even if this reader misunderstands the shell's quoting,
//! a value cannot become a command: at worst it is split into words.
//!
//! ```text
//!   command text ── reader ──▶ quoting around each value: Quoting, or a refusal
//!                     └──────▶ simple commands and pipelines ── evaluators ──▶ does a program evaluate it?
//! ```

mod evaluators;
mod reader;

use crate::spec::{Shell, base_name};
use crate::template::Piece;

pub(crate) use evaluators::{Verdict, arguments};

/// The way to write the expansion of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quoting {
    /// Outside quotes: the expansion has its own quotes.
    Bare,
    /// Inside double quotes or a here-document: the expansion without quotes.
    Quoted,
}

/// The reason why a value is not allowed at its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) message: &'static str,
    pub(crate) help: &'static str,
}

const IN_SINGLE_QUOTES: Refusal = Refusal {
    message: "a value cannot be used inside single quotes",
    help: "use double quotes there, or none: a value is one word by itself",
};
const AFTER_BACKSLASH: Refusal = Refusal {
    message: "a value cannot follow a backslash",
    help: "remove the backslash: a value needs no escaping",
};
const IN_EXPANSION: Refusal = Refusal {
    message: "a value cannot be used inside `${ }`, parts of which a shell evaluates",
    help: "use the template: {{ inputs.x | default('y') }}",
};
const IN_DOUBLE_BRACKETS: Refusal = Refusal {
    message: "a value cannot be used inside `[[ ]]`, which evaluates numbers as arithmetic",
    help: "use `[ ]`, which compares the same and evaluates nothing",
};
const IN_ARITHMETIC: Refusal = Refusal {
    message: "a value cannot be used inside shell arithmetic, which would evaluate it",
    help: "compute it in the template: {{ inputs.n + 1 }}",
};
const IN_SUBSCRIPT: Refusal = Refusal {
    message: "a value cannot be used in the subscript of an array, which a shell evaluates",
    help: "pass it through `env:`, and check it before using it as a subscript",
};
const BESIDE_INTEGERS: Refusal = Refusal {
    message: "a value cannot be used in a command that declares integer variables, to which a shell assigns by evaluating",
    help: "declare the variable without `-i`",
};
pub(crate) const EVALUATED_AGAIN: Refusal = Refusal {
    message: "a value cannot be used where it is evaluated, as by `eval`, `sh -c`, `awk`, `ssh` or `declare`",
    help: "pass it through `env:` and use the variable inside the program",
};
const READ_AS_PROGRAM: Refusal = Refusal {
    message: "a value cannot be part of what an interpreter reads as its program",
    help: "pass it through `env:` and use the variable inside the program",
};
pub(crate) const NOT_A_POSIX_SHELL: Refusal = Refusal {
    message: "a value cannot be part of a command for this shell, whose quoting is not known",
    help: "pass it through `env:` and read the variable in the command",
};

/// The differences between shells that matter for values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// `sh`, `bash`, `dash`.
    Plain,
    /// `ksh` and `zsh`, whose builtins evaluate numbers as arithmetic.
    Counting,
}

impl Dialect {
    /// Returns the dialect of a shell.
    pub(crate) fn of(shell: &Shell) -> Dialect {
        match shell.0.first().map(|program| base_name(program)) {
            Some("ksh" | "zsh") => Dialect::Counting,
            _ => Dialect::Plain,
        }
    }
}

/// The result of reading a command with values.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Reading {
    /// The quoting of each value.
    pub(crate) quotings: Vec<Quoting>,
    /// Values that are data for the shell but may be more for a program: index and use.
    pub(crate) doubtful: Vec<(usize, Verdict)>,
}

/// Reads a command. The error is the index of the first value that is not allowed at its position, with the reason.
pub(crate) fn read(pieces: &[Piece<'_>], dialect: Dialect) -> Result<Reading, (usize, Refusal)> {
    let mut reader = reader::Reader::new(dialect);
    for piece in pieces {
        match piece {
            Piece::Literal(text) => text.chars().for_each(|c| reader.read(c)),
            Piece::Value(_) => reader.value(),
        }
    }
    reader.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template;

    fn check(command: &str) -> Result<Vec<Quoting>, (usize, Refusal)> {
        read(&template::split(command).unwrap(), Dialect::Plain).map(|reading| reading.quotings)
    }

    #[test]
    fn values_are_quoted_by_where_they_stand() {
        use Quoting::{Bare, Quoted};
        for (command, expected) in [
            ("echo {{ x }}", vec![Bare]),
            ("echo \"a {{ x }} b\" {{ x }}", vec![Quoted, Bare]),
            ("echo 'it' {{ x }} \"'{{ x }}'\"", vec![Bare, Quoted]),
            ("echo \"$(cat {{ x }})\" {{ x }}", vec![Bare, Bare]),
            ("echo \"`cat {{ x }}` {{ x }}\"", vec![Bare, Quoted]),
            ("echo a#{{ x }} # don't {{ x }}\necho {{ x }}", vec![Bare, Quoted, Bare]),
            ("cat <<EOF\n'{{ x }}'\nEOF\necho {{ x }}", vec![Quoted, Bare]),
            ("cat <<-EOF\n\t'{{ x }}\n\tEOF\necho {{ x }}", vec![Quoted, Bare]),
            ("cat <<< {{ x }}\necho {{ x }}", vec![Bare, Bare]),
            ("echo \\' {{ x }} $'a\\'b' {{ x }}", vec![Bare, Bare]),
            ("(cd a; echo {{ x }}) && echo $((1 + 2)) {{ x }}", vec![Bare, Bare]),
            ("sh -c 'echo \"$1\"' sh {{ x }}", vec![Bare]),
            ("bash -e script.sh {{ x }}; python3 tool.py {{ x }}", vec![Bare, Bare]),
            ("echo ${y:-'}'} ${#y} \"${y:-'}\" {{ x }}", vec![Bare]),
            ("if [[ $a == b ]]; then echo {{ x }}; fi", vec![Bare]),
            ("if [ {{ x }} = b ] && [ -n \"{{ x }}\" ]; then :; fi", vec![Bare, Quoted]),
            ("local a={{ x }} b=\"{{ x }}\"; export C={{ x }}", vec![Bare, Quoted, Bare]),
        ] {
            assert_eq!(check(command), Ok(expected), "{command}");
        }
    }

    #[test]
    fn a_value_that_would_be_lost_or_evaluated_is_refused() {
        let mut wrong = Vec::new();
        for (command, refusal) in [
            ("echo '{{ x }}'", IN_SINGLE_QUOTES),
            ("echo $'{{ x }}'", IN_SINGLE_QUOTES),
            ("cat <<'EOF'\n{{ x }}\nEOF", IN_SINGLE_QUOTES),
            ("echo \\{{ x }}", AFTER_BACKSLASH),
            ("echo $(( {{ x }} + 1 ))", IN_ARITHMETIC),
            ("echo \"$(( (1) + {{ x }} ))\"", IN_ARITHMETIC),
            ("(( n = {{ x }} ))", IN_ARITHMETIC),
            ("echo $[{{ x }}]", IN_ARITHMETIC),
            ("echo \"a $[ y[{{ x }}] ]\"", IN_ARITHMETIC),
            ("echo ${y:{{ x }}}", IN_EXPANSION),
            ("echo \"${y[{{ x }}]}\"", IN_EXPANSION),
            ("[[ {{ x }} -eq 0 ]]", IN_DOUBLE_BRACKETS),
            ("if [[ -n $y && \"{{ x }}\" -eq 0 ]]; then :; fi", IN_DOUBLE_BRACKETS),
            ("y[{{ x }}]=1", IN_SUBSCRIPT),
            ("arr=([{{ x }}]=1)", IN_SUBSCRIPT),
            ("declare -A arr; arr+=(a [\"{{ x }}\"]=1)", IN_SUBSCRIPT),
            ("declare -i n; n={{ x }}", BESIDE_INTEGERS),
            ("f() { local -i n; n=$1; }; f {{ x }}", BESIDE_INTEGERS),
            ("declare -n r; r={{ x }}", BESIDE_INTEGERS),
            ("typeset -ri n=1; echo {{ x }}", BESIDE_INTEGERS),
        ] {
            if check(command) != Err((0, refusal)) {
                wrong.push(command);
            }
        }
        for command in [
            "unset {{ x }}",
            "read -r \"{{ x }}\"",
            "declare \"{{ x }}=1\"",
            "declare -a n={{ x }}",
            "export {{ x }}",
            "let n={{ x }}",
            "printf -v {{ x }} %s y",
            "printf \"-v{{ x }}\" y",
            "printf {{ x }}",
            "command printf {{ x }} y",
            "[ -v {{ x }} ]",
            "[ {{ x }} {{ x }} ]",
            "test ! {{ x }} {{ x }}",
            "eval \"echo {{ x }}\"",
            "eval echo {{ x }}",
            "eval \"$(echo {{ x }})\"",
            "sh -c \"echo {{ x }}\"",
            "sh -c \"$(echo {{ x }})\"",
            "bash -c \"`echo {{ x }}`\"",
            "timeout 5 /bin/bash -xec  \"echo {{ x }}\"",
            "env -i bash --norc -c \"echo {{ x }}\"",
            "python3 -c \"print('{{ x }}')\"",
            "python3.11 -c \"print('{{ x }}')\"",
            "/usr/bin/python3.11 -Ic {{ x }}",
            "perl -lane \"print {{ x }}\"",
            "node20 --eval=\"{{ x }}\"",
            "ruby3.2 -e {{ x }}",
            "php -r \"{{ x }}\"",
            "awk \"/{{ x }}/\" file",
            "gawk -F: {{ x }} file",
            "awk -v a=1 \"{{ x }}\"",
            "sed \"s/a/{{ x }}/\" file",
            "sed -ne \"{{ x }}p\" file",
            "sed -i -e p -e {{ x }} file",
            "make {{ x }}",
            "make V={{ x }} all",
            "flock lock -c \"echo {{ x }}\"",
            "script -qec \"{{ x }}\" log",
            "su - user -c \"{{ x }}\"",
            "env -S \"echo {{ x }}\"",
            "env --split-string={{ x }}",
            "git -c alias.x={{ x }} x",
            "git -c core.pager=\"{{ x }}\" log",
            "git rebase -x \"{{ x }}\" main",
            "git submodule foreach \"{{ x }}\"",
            "git config alias.x {{ x }}",
            "git config {{ x }} y",
            "xargs sh -c \"echo {{ x }}\"",
            "find . -exec sh -c \"echo {{ x }}\" \\;",
            "find . -exec {{ x }} \\;",
            "tar cf a.tar --to-command={{ x }} .",
            "rsync -e \"{{ x }}\" a b",
            "sqlite3 db \"select '{{ x }}'\"",
            "psql -c \"select '{{ x }}'\"",
            "echo $(ssh host ls {{ x }})",
            "trap \"rm {{ x }}\" EXIT",
            "alias ll={{ x }}",
            "compgen -W \"{{ x }}\"",
            "PS4={{ x }}; set -x; :",
            "GIT_SSH_COMMAND=\"ssh -i {{ x }}\" git fetch",
            "source <(echo {{ x }})",
            ". {{ x }}",
            "if true; then . <(echo {{ x }}); fi",
            "nohup setsid sudo bash -c \"{{ x }}\"",
        ] {
            if check(command).map_err(|(_, refusal)| refusal) != Err(EVALUATED_AGAIN) {
                wrong.push(command);
            }
        }
        for command in [
            "bash <<EOF\necho {{ x }}\nEOF",
            "cat <<EOF | ssh host\necho {{ x }}\nEOF",
            "bash <<< {{ x }}",
            "<<< \"{{ x }}\" python3 -",
            "echo {{ x }} | bash",
            "echo {{ x }} | tee log | sudo -u user sh -s",
            "(echo {{ x }}) | bash",
            "{ echo {{ x }}; } | bash",
            "for f in a; do echo {{ x }}; done | sh",
            "if true; then echo {{ x }}; fi | sh",
            "echo {{ x }} | { cat; bash; }",
            "echo {{ x }} | (cd /; bash)",
            "echo {{ x }} | python3.12",
            "echo {{ x }} | psql db",
            "echo {{ x }} | xargs -I{} sh -c 'echo {}'",
            "echo {{ x }} | xargs bash",
            "bash -xc bash <<EOF\n{{ x }}\nEOF",
            "echo {{ x }} | sh -c 'cd /; exec bash'",
            "echo {{ x }} | python3 -c 'exec(input())'",
            "echo {{ x }} | ssh host bash",
            "printf '%s' \"$(echo {{ x }})\" | sh",
        ] {
            if check(command) != Err((0, READ_AS_PROGRAM)) {
                wrong.push(command);
            }
        }
        assert_eq!(wrong, [""; 0]);
    }

    #[test]
    fn a_value_that_known_programs_treat_as_data_is_accepted() {
        let mut wrong = Vec::new();
        for command in [
            "echo {{ x }} | grep python | sort -u | head",
            "echo {{ x }} | bash script.sh",
            "echo {{ x }} | sh -c 'cat'",
            "echo {{ x }} | python3 -c 'import sys; print(sys.stdin.read())'",
            "echo {{ x }} | ssh host cat",
            "echo {{ x }} | xargs -n1 rm",
            "echo {{ x }} | xargs sh -c 'echo \"$1\"' sh",
            "echo please read at {{ x }}",
            "python3 tool.py -c {{ x }}",
            "bash -o pipefail script.sh -c {{ x }}",
            "awk -v a={{ x }} '{ print a }' file",
            "awk '{ print $1 }' {{ x }}",
            "sed -e 's/a/b/' {{ x }}",
            "sed -n 's/a/b/p' {{ x }}",
            "make -C {{ x }} -j{{ x }} all",
            "git switch -c {{ x }}",
            "git commit -am \"Fix {{ x }}\"",
            "git -C {{ x }} status",
            "git config user.name {{ x }}",
            "git clone --depth 1 -- {{ x }}",
            "find {{ x }} -maxdepth {{ x }} -name \"*{{ x }}*\"",
            "find . -exec grep {{ x }} {} +",
            "[ {{ x }} -eq 0 ] || exit 1",
            "[ ! {{ x }} = {{ x }} ]",
            "printf '%s\\n' {{ x }} -v",
            "printf -- {{ x }}",
            "env NAME={{ x }} ./tool",
            "PATH=\"$PATH\" NAME={{ x }} ./tool --flag={{ x }} dir/{{ x }}/file",
            "for f in {{ x }} \"a {{ x }}\"; do echo \"$f\"; done",
            "case {{ x }} in a) echo {{ x }} ;; esac",
            "cat > script.sh <<EOF\n{{ x }}\nEOF",
            "arr=({{ x }} \"{{ x }}\" [1]={{ x }}); echo \"${arr[0]}\"",
            "echo {{ x }} > {{ x }} 2>&1",
            "echo a\\\n  {{ x }}",
            "curl -H \"Title: {{ x }}\" https://example.com/{{ x }}",
            "tar -czf \"$WORK/{{ x }}.tar.gz\" -C {{ x }} .",
        ] {
            let reading = read(&template::split(command).unwrap(), Dialect::Plain);
            if !reading.as_ref().is_ok_and(|reading| reading.doubtful.is_empty()) {
                wrong.push(format!("{command}: {reading:?}"));
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    #[test]
    fn a_value_in_an_argument_of_an_unknown_program_is_warned_of() {
        let glued = |program: &str| Verdict::PartOfArgument(program.to_owned());
        for (command, verdict) in [
            ("mytool \"do {{ x }}\"", glued("mytool")),
            ("sudo ./scripts/run.sh 'a' \"x; {{ x }}\"", glued("sudo")),
            ("{{ x }} --version", Verdict::Command),
            ("A=1 {{ x }}", Verdict::Command),
        ] {
            let reading = read(&template::split(command).unwrap(), Dialect::Plain).unwrap();
            assert_eq!(reading.doubtful, [(0, verdict)], "{command}");
        }
    }

    #[test]
    fn shells_whose_builtins_count_are_given_fewer_values() {
        for command in ["[ {{ x }} -eq 0 ]", "printf %d {{ x }}", "exit {{ x }}", "typeset a={{ x }}"] {
            let pieces = template::split(command).unwrap();
            assert!(read(&pieces, Dialect::Counting).is_err(), "{command}");
        }
        let pieces = template::split("[ {{ x }} = a ] && echo {{ x }}").unwrap();
        assert!(read(&pieces, Dialect::Counting).is_ok());
    }
}
