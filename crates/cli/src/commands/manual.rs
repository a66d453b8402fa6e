//! `sprag manual`: man pages and completion scripts as files, for the install step of a package.

use std::fs;
use std::path::Path;

use clap::Command;
use clap_complete::Shell;
use serde_json::json;

use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::help;
use crate::show::line;

/// The folders of the completion scripts, and their file names.
const COMPLETIONS: [(Shell, &str); 3] = [
    (Shell::Bash, "bash-completion/completions/sprag"),
    (Shell::Zsh, "zsh/site-functions/_sprag"),
    (Shell::Fish, "fish/vendor_completions.d/sprag.fish"),
];

pub(crate) fn manual(context: &Context, folder: &Path) -> Result<Exit, Failure> {
    let mut written = Vec::new();
    let mut write = |name: &str, text: &[u8]| -> Result<(), Failure> {
        let path = folder.join(name);
        let made = path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&path, text));
        made.map_err(|error| Failure::error(format!("{}: {error}", path.display())))?;
        written.push(path);
        Ok(())
    };
    let mut command = help::command();
    command.build();
    write("man/man1/sprag.1", page("sprag", &command).as_bytes())?;
    for one in command.get_subcommands().filter(|one| one.get_name() != "help") {
        let name = format!("sprag-{}", one.get_name());
        write(&format!("man/man1/{name}.1"), page(&name, one).as_bytes())?;
    }
    for (shell, name) in COMPLETIONS {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut help::command(), "sprag", &mut script);
        write(name, &script)?;
    }
    if context.json {
        line(&json!(written).to_string());
    } else {
        written.iter().for_each(|path| line(&path.display().to_string()));
    }
    Ok(Exit::Ok)
}

/// Returns the man page of a command: its help, set as it is shown on a terminal.
fn page(name: &str, command: &Command) -> String {
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let mut page = format!(
        ".TH {} 1 \"\" \"sprag {}\" \"Sprag\"\n.SH NAME\n{} \\- {}\n",
        roff(&name.to_uppercase()),
        env!("CARGO_PKG_VERSION"),
        roff(name),
        roff(&about)
    );
    let help = command.clone().render_long_help().to_string();
    page += ".SH DESCRIPTION\n.nf\n";
    for text in help.lines() {
        page += &format!("{}\n", roff(text));
    }
    page += ".fi\n";
    for one in command.get_subcommands().filter(|one| name != "sprag" && one.get_name() != "help") {
        page += &format!(".SH {}\n.nf\n", roff(&one.get_name().to_uppercase()));
        for text in one.clone().render_long_help().to_string().lines() {
            page += &format!("{}\n", roff(text));
        }
        page += ".fi\n";
    }
    page
}

/// Escapes a line for roff.
fn roff(text: &str) -> String {
    let escaped = text.replace('\\', "\\e").replace('-', "\\-");
    if escaped.starts_with(['.', '\'']) { format!("\\&{escaped}") } else { escaped }
}
