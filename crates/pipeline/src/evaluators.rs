//! Commands that evaluate what they are given: no value may be part of that.

use crate::spec::base_name;

/// What evaluates its arguments, whatever they are.
const EVALUATORS: [&str; 11] =
    ["eval", "ssh", "trap", "watch", "let", "unset", "read", "mapfile", "readarray", "getopts", "source"];
/// What evaluates the argument after a flag with `c`.
const SHELLS: [&str; 7] = ["sh", "bash", "dash", "zsh", "ksh", "fish", "su"];
/// What evaluates the argument after a flag that ends in one of `c`, `e`, `E`, `r`, `p`.
const LANGUAGES: [&str; 8] = ["python", "python2", "python3", "perl", "ruby", "node", "php", "psql"];
/// What takes assignments: the name is evaluated, the value only with `-i`.
const DECLARATIONS: [&str; 5] = ["declare", "typeset", "local", "export", "readonly"];
/// What evaluates the name of a variable after `-v`.
const VARIABLE_FLAGS: [&str; 3] = ["printf", "test", "["];

/// Whether a value in the last of these words is evaluated, and not data for a command.
pub(crate) fn is_evaluated_again<'a>(words: impl Iterator<Item = &'a str>) -> bool {
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    let Some((last, before)) = words.split_last() else { return false };
    let named = |names: &[&str]| before.iter().any(|word| names.contains(&base_name(word)));
    if named(&EVALUATORS) || is_subscript(last) {
        return true;
    }
    if named(&DECLARATIONS) {
        let integer = before.iter().any(|word| word.starts_with('-') && word.contains('i'));
        return integer || !is_assignment(last);
    }
    if named(&VARIABLE_FLAGS) && before.last() == Some(&"-v") {
        return true;
    }
    is_program(before)
}

/// Whether any of these words is a program that evaluates what it reads.
pub(crate) fn names_an_interpreter(words: &[String]) -> bool {
    let mut names = words.iter().map(|word| base_name(word));
    names.any(|name| ["eval", "ssh"].contains(&name) || SHELLS.contains(&name) || LANGUAGES.contains(&name))
}

/// Whether the word after these is the program of an interpreter, as in `sh -c PROGRAM`.
fn is_program(words: &[&str]) -> bool {
    let mut interpreter: Option<&[&str]> = None;
    let mut program_next = false;
    for word in words {
        let flag = word.starts_with('-') && !word.starts_with("--");
        let takes_program = match interpreter {
            Some(kind) if kind == SHELLS => flag && word.contains('c') || *word == "--command",
            Some(_) => {
                flag && word.ends_with(['c', 'e', 'E', 'r', 'p']) || ["--eval", "--command"].contains(word)
            }
            None => false,
        };
        // Further flags may stand between: `sh -c -x PROGRAM`.
        program_next = takes_program || program_next && word.starts_with('-');
        if SHELLS.contains(&base_name(word)) {
            interpreter = Some(&SHELLS);
        } else if LANGUAGES.contains(&base_name(word)) {
            interpreter = Some(&LANGUAGES);
        }
    }
    program_next
}

/// Whether the word is `NAME=…`, so that what follows is the value.
fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        let name = name.strip_suffix('+').unwrap_or(name);
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    })
}

/// Whether the word so far ends inside the subscript of an array, `NAME[`, which is arithmetic.
fn is_subscript(word: &str) -> bool {
    word.rsplit_once('[').is_some_and(|(name, inside)| {
        !inside.contains(']')
            && !name.is_empty()
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    })
}
