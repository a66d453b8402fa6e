//! Names of branches, as far as they can be told to be wrong before there is a repository.

use crate::diagnostic::{Problem, Report};
use crate::template::{self, Piece};
use crate::yaml::Node;

/// What is wrong with a branch's name: what git refuses, or reads as something else. None if nothing is.
pub fn branch_problem(name: &str) -> Option<&'static str> {
    let parts = || name.split('/');
    let forbidden = |c: char| c.is_ascii_control() || " ~^:?*[\\".contains(c);
    Some(match name {
        "" => "it is empty",
        "@" | "HEAD" => "git reads it as the current commit",
        _ if name.starts_with('-') => "it begins with `-`, like an option",
        _ if name.contains("@{") => "git reads it as an entry of a reflog",
        _ if parts().any(|part| part.ends_with(".lock")) => {
            "a part of it ends in `.lock`, like git's lock files"
        }
        _ if parts().any(str::is_empty) => "a part of it is empty",
        _ if parts().any(|part| part.starts_with('.')) || name.ends_with('.') => {
            "a part of it begins with a dot, or it ends with one"
        }
        _ if name.contains("..") => "git reads `..` as a range",
        _ if name.contains(forbidden) => "it holds a blank, a control character, or one of ~ ^ : ? * [ \\",
        _ => return None,
    })
}

/// Reports a branch whose name is wrong whatever its values turn out to be.
pub(crate) fn check(node: &Node, report: &mut Report) {
    let Some(Ok(pieces)) = node.text().map(template::split) else { return };
    // A value in it may be anything: one that is good leaves only what is written around it.
    let name: String = pieces
        .iter()
        .map(|piece| match piece {
            Piece::Literal(text) => text.as_ref(),
            Piece::Value(_) => "x",
        })
        .collect();
    if let Some(wrong) = branch_problem(&name) {
        let problem = Problem::at(node.span, format!("no branch can be called this: {wrong}"));
        report.error(problem.expected("a name that git allows for a branch"));
    }
}
