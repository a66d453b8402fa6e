//! Checks of branch names that need no repository.

use crate::diagnostic::{Problem, Report};
use crate::template::{self, Piece};
use crate::yaml::Node;

/// Returns the reason why git refuses or misreads a branch name, or `None` if the name is fine.
pub fn branch_problem(name: &str) -> Option<&'static str> {
    let parts = || name.split('/');
    let forbidden = |c: char| c.is_ascii_control() || " ~^:?*[\\".contains(c);
    Some(match name {
        "" => "it is empty",
        "@" | "HEAD" => "git reads it as the current commit",
        _ if name.starts_with('-') => "it starts with `-`, like an option",
        _ if name.contains("@{") => "git reads it as an entry of a reflog",
        _ if parts().any(|part| part.ends_with(".lock")) => {
            "a part of it ends in `.lock`, like git's lock files"
        }
        _ if parts().any(str::is_empty) => "a part of it is empty",
        _ if parts().any(|part| part.starts_with('.')) || name.ends_with('.') => {
            "a part of it starts with a dot, or it ends with one"
        }
        _ if name.contains("..") => "git reads `..` as a range",
        _ if name.contains(forbidden) => "it contains a space, a control character, or one of ~ ^ : ? * [ \\",
        _ => return None,
    })
}

/// Reports a branch name that is wrong for every value of its templates.
pub(crate) fn check(node: &Node, report: &mut Report) {
    let Some(Ok(pieces)) = node.text().map(template::split) else { return };
    // A template may produce any text, so only the text around it is checked.
    let name: String = pieces
        .iter()
        .map(|piece| match piece {
            Piece::Literal(text) => text.as_ref(),
            Piece::Value(_) => "x",
        })
        .collect();
    if let Some(wrong) = branch_problem(&name) {
        let problem = Problem::at(node.span, format!("invalid branch name: {wrong}"));
        report.error(problem.expected("a branch name that git accepts"));
    }
}
