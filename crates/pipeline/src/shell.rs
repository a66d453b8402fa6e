//! Where a value stands in a shell command, so that it is passed as data and never read as a command.
//!
//! A value is never written into the command. It is put into an environment variable, and the command gets
//! the variable's expansion, which a shell does not parse again. So even where this reading of the shell's
//! quoting errs, a value cannot become a command: at worst it is split into words.

use crate::evaluators::{is_evaluated_again, names_an_interpreter};
use crate::template::Piece;

/// How a value is written at its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spot {
    /// Outside quotes: the expansion brings its own.
    Bare,
    /// Inside double quotes or a here-document: the expansion alone.
    Quoted,
}

/// Why a value cannot stand where it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) message: &'static str,
    pub(crate) help: &'static str,
}

const IN_SINGLE_QUOTES: Refusal = Refusal {
    message: "a value cannot stand inside single quotes",
    help: "use double quotes there, or none: a value is one word by itself",
};
const AFTER_BACKSLASH: Refusal = Refusal {
    message: "a value cannot follow a backslash",
    help: "remove the backslash: a value needs no escaping",
};
const IN_EXPANSION: Refusal = Refusal {
    message: "a value cannot stand inside `${ }`, parts of which a shell evaluates",
    help: "use the template: {{ inputs.x | default('y') }}",
};
const IN_DOUBLE_BRACKETS: Refusal = Refusal {
    message: "a value cannot stand inside `[[ ]]`, which evaluates numbers as arithmetic",
    help: "use `[ ]`, which compares the same and evaluates nothing",
};
const IN_ARITHMETIC: Refusal = Refusal {
    message: "a value cannot stand inside shell arithmetic, which would evaluate it",
    help: "compute it in the template: {{ inputs.n + 1 }}",
};
pub(crate) const EVALUATED_AGAIN: Refusal = Refusal {
    message: "a value cannot stand where it is evaluated, as by `eval`, `sh -c`, `ssh` or `declare`",
    help: "pass it through `env:` and use the variable inside the program",
};
pub(crate) const NOT_A_POSIX_SHELL: Refusal = Refusal {
    message: "a value cannot be part of a command for this shell, whose quoting is not known",
    help: "pass it through `env:` and read the variable in the command",
};

/// The spot of each value in a command; the number of the first value that cannot stand where it does.
pub(crate) fn spots(pieces: &[Piece<'_>]) -> Result<Vec<Spot>, (usize, Refusal)> {
    let mut reader = Reader { contexts: vec![Context::Command], ..Reader::default() };
    let mut spots = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Literal(text) => text.chars().for_each(|c| reader.read(c)),
            Piece::Value(_) => {
                let spot = reader.spot().map_err(|refusal| (spots.len(), refusal))?;
                spots.push(spot);
                reader.value();
            }
        }
    }
    Ok(spots)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Context {
    /// Words of a command; also inside `$( )`.
    Command,
    /// `( )` inside a command.
    Group,
    Single,
    /// `$'…'`, where a backslash escapes.
    AnsiSingle,
    Double,
    Backtick,
    Comment,
    /// `${ }`, and whether it stands inside double quotes.
    Expansion(bool),
    /// `(( ))` or `$(( ))`, with how many parentheses are open inside.
    Arithmetic(u32),
}

/// A here-document that begins at the next line.
#[derive(Debug, Clone)]
struct HereDocument {
    delimiter: String,
    literal: bool,
    strip_tabs: bool,
}

/// Reads a command text character by character, as far as quoting goes.
#[derive(Debug, Default)]
struct Reader {
    contexts: Vec<Context>,
    escaped: bool,
    before: [char; 2],
    /// The words of the simple command so far, the last perhaps unfinished.
    words: Vec<String>,
    /// Between `[[` and `]]`.
    in_double_brackets: bool,
    /// Whether the line so far starts an interpreter, which would read a here-document as a program.
    line_interprets: bool,
    /// A here-document whose delimiter is being read, and whether that has begun.
    announced: Option<(HereDocument, bool)>,
    pending: Vec<HereDocument>,
    body: Option<(HereDocument, String)>,
}

impl Reader {
    fn context(&self) -> Context {
        self.contexts.last().copied().unwrap_or(Context::Command)
    }

    fn spot(&self) -> Result<Spot, Refusal> {
        if let Some((document, _)) = &self.body {
            return match document.literal {
                true => Err(IN_SINGLE_QUOTES),
                false if self.line_interprets => Err(EVALUATED_AGAIN),
                false => Ok(Spot::Quoted),
            };
        }
        if self.escaped {
            return Err(AFTER_BACKSLASH);
        }
        if self.contexts.iter().any(|context| matches!(context, Context::Arithmetic(_))) {
            return Err(IN_ARITHMETIC);
        }
        if self.contexts.iter().any(|context| matches!(context, Context::Expansion(_))) {
            return Err(IN_EXPANSION);
        }
        if self.in_double_brackets || self.words.last().is_some_and(|word| word == "[[") {
            return Err(IN_DOUBLE_BRACKETS);
        }
        // The value is part of the last word, even if it is the first of it.
        let (done, begun) = self.words.split_at(self.words.len().saturating_sub(1));
        let last = format!("{}\u{fffc}", begun.concat());
        if is_evaluated_again(done.iter().map(String::as_str).chain([last.as_str()])) {
            return Err(EVALUATED_AGAIN);
        }
        match self.context() {
            Context::Single | Context::AnsiSingle => Err(IN_SINGLE_QUOTES),
            Context::Double | Context::Comment => Ok(Spot::Quoted),
            _ => Ok(Spot::Bare),
        }
    }

    /// Notes that a value stands here: part of a word, and no character that means anything.
    fn value(&mut self) {
        self.before = [self.before[1], '\u{fffc}'];
        if self.body.is_none() {
            self.word('\u{fffc}');
        } else if let Some((_, line)) = &mut self.body {
            line.push('\u{fffc}');
        }
    }

    fn read(&mut self, c: char) {
        if self.body.is_some() {
            self.read_body(c);
            return;
        }
        let [earlier, last] = self.before;
        self.before = [last, c];
        if std::mem::take(&mut self.escaped) {
            self.before[1] = '\u{fffc}';
            self.word(c);
            return;
        }
        match self.context() {
            Context::Single if c == '\'' => self.leave(),
            Context::Single => self.word(c),
            Context::AnsiSingle => match c {
                '\\' => self.escaped = true,
                '\'' => self.leave(),
                _ => self.word(c),
            },
            Context::Comment if c != '\n' => {}
            Context::Comment => {
                self.leave();
                self.command_ends(c);
            }
            Context::Double => match c {
                '\\' => self.escaped = true,
                '"' => self.leave(),
                '`' => self.backtick(),
                '(' if last == '$' => self.substitution(),
                '{' if last == '$' => self.contexts.push(Context::Expansion(true)),
                _ => self.word(c),
            },
            Context::Expansion(quoted) => match c {
                '\\' => self.escaped = true,
                '}' => self.leave(),
                '"' => self.contexts.push(Context::Double),
                '\'' if !quoted => self.contexts.push(Context::Single),
                '`' => self.backtick(),
                '(' if last == '$' => self.substitution(),
                '{' if last == '$' => self.contexts.push(Context::Expansion(quoted)),
                _ => {}
            },
            Context::Arithmetic(open) => self.arithmetic(c, open),
            Context::Command | Context::Group | Context::Backtick => self.command(c, last, earlier),
        }
    }

    fn command(&mut self, c: char, last: char, earlier: char) {
        let word_begins = matches!(last, '\0' | ' ' | '\t' | '\n' | ';' | '&' | '|' | '(' | ')');
        match c {
            '\\' => self.escaped = true,
            '\'' if last == '$' => self.contexts.push(Context::AnsiSingle),
            '\'' => self.contexts.push(Context::Single),
            '"' => self.contexts.push(Context::Double),
            '`' => self.backtick(),
            '#' if word_begins => self.contexts.push(Context::Comment),
            // `((` and `$((`: the first parenthesis was taken for a group or a substitution.
            '(' if last == '('
                && matches!(self.context(), Context::Group | Context::Command)
                && self.contexts.len() > 1 =>
            {
                self.leave();
                self.contexts.push(Context::Arithmetic(0));
            }
            '(' if last == '$' => self.substitution(),
            '{' if last == '$' => self.contexts.push(Context::Expansion(false)),
            '(' => {
                self.contexts.push(Context::Group);
                self.words.push(String::new());
            }
            ')' if self.contexts.len() > 1 && self.context() != Context::Backtick => self.leave(),
            '<' if last == '<' && earlier == '<' => self.announced = None,
            '<' if last == '<' => {
                let document = HereDocument { delimiter: String::new(), literal: false, strip_tabs: false };
                self.announced = Some((document, false));
            }
            '\n' | ';' | '&' | '|' => self.command_ends(c),
            _ => self.word(c),
        }
    }

    fn arithmetic(&mut self, c: char, open: u32) {
        let context = match (c, open) {
            ('(', _) => Context::Arithmetic(open + 1),
            (')', 0) if self.before[0] == ')' => return self.leave(),
            (')', _) => Context::Arithmetic(open.saturating_sub(1)),
            _ => return,
        };
        self.leave();
        self.contexts.push(context);
    }

    fn substitution(&mut self) {
        self.contexts.push(Context::Command);
        self.words.push(String::new());
    }

    fn backtick(&mut self) {
        self.words.push(String::new());
        if let Some(at) = self.contexts.iter().rposition(|context| *context == Context::Backtick) {
            self.contexts.truncate(at);
        } else {
            self.contexts.push(Context::Backtick);
        }
    }

    fn leave(&mut self) {
        self.contexts.pop();
    }

    /// A character of a word, quoted or not; blanks outside quotes end the word.
    fn word(&mut self, c: char) {
        let quoted = matches!(self.context(), Context::Single | Context::AnsiSingle | Context::Double);
        if let Some((document, begun)) = &mut self.announced {
            match c {
                '-' if !*begun && !document.strip_tabs => document.strip_tabs = true,
                ' ' | '\t' if !*begun => {}
                ' ' | '\t' if !quoted => self.document_announced(),
                _ => {
                    *begun = true;
                    document.literal |= quoted;
                    document.delimiter.push(c);
                }
            }
        }
        if !quoted && (c == ' ' || c == '\t') {
            self.word_ends();
            self.words.push(String::new());
        } else if let Some(word) = self.words.last_mut() {
            word.push(c);
        } else {
            self.words.push(c.to_string());
        }
    }

    fn word_ends(&mut self) {
        match self.words.last().map(String::as_str) {
            Some("[[") => self.in_double_brackets = true,
            Some("]]") => self.in_double_brackets = false,
            _ => {}
        }
    }

    fn document_announced(&mut self) {
        if let Some((document, true)) = self.announced.take() {
            self.pending.push(document);
        }
    }

    fn command_ends(&mut self, by: char) {
        self.document_announced();
        self.word_ends();
        self.line_interprets |= names_an_interpreter(&self.words);
        self.words.clear();
        if by == '\n' {
            self.begin_body();
        }
    }

    fn begin_body(&mut self) {
        self.body = (!self.pending.is_empty()).then(|| (self.pending.remove(0), String::new()));
        self.line_interprets &= self.body.is_some();
    }

    fn read_body(&mut self, c: char) {
        let Some((document, line)) = &mut self.body else { return };
        if c != '\n' {
            line.push(c);
            return;
        }
        let text = if document.strip_tabs { line.trim_start_matches('\t') } else { line.as_str() };
        if text == document.delimiter {
            self.begin_body();
            self.before = ['\n', '\n'];
        } else {
            line.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template;

    fn check(command: &str) -> Result<Vec<Spot>, (usize, Refusal)> {
        spots(&template::split(command).unwrap())
    }

    #[test]
    fn values_are_quoted_by_where_they_stand() {
        use Spot::{Bare, Quoted};
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
    fn where_a_value_would_be_lost_or_evaluated_it_is_refused() {
        for (command, refusal) in [
            ("echo '{{ x }}'", IN_SINGLE_QUOTES),
            ("echo $'{{ x }}'", IN_SINGLE_QUOTES),
            ("cat <<'EOF'\n{{ x }}\nEOF", IN_SINGLE_QUOTES),
            ("echo \\{{ x }}", AFTER_BACKSLASH),
            ("echo $(( {{ x }} + 1 ))", IN_ARITHMETIC),
            ("echo \"$(( (1) + {{ x }} ))\"", IN_ARITHMETIC),
            ("(( n = {{ x }} ))", IN_ARITHMETIC),
            ("echo ${y:{{ x }}}", IN_EXPANSION),
            ("echo \"${y[{{ x }}]}\"", IN_EXPANSION),
            ("[[ {{ x }} -eq 0 ]]", IN_DOUBLE_BRACKETS),
            ("if [[ -n $y && \"{{ x }}\" -eq 0 ]]; then :; fi", IN_DOUBLE_BRACKETS),
            ("y[{{ x }}]=1", EVALUATED_AGAIN),
            ("unset {{ x }}", EVALUATED_AGAIN),
            ("read -r \"{{ x }}\"", EVALUATED_AGAIN),
            ("declare \"{{ x }}=1\"", EVALUATED_AGAIN),
            ("declare -i n={{ x }}", EVALUATED_AGAIN),
            ("let n={{ x }}", EVALUATED_AGAIN),
            ("printf -v {{ x }} %s y", EVALUATED_AGAIN),
            ("[ -v {{ x }} ]", EVALUATED_AGAIN),
            ("eval \"echo {{ x }}\"", EVALUATED_AGAIN),
            ("eval echo {{ x }}", EVALUATED_AGAIN),
            ("sh -c \"echo {{ x }}\"", EVALUATED_AGAIN),
            ("timeout 5 /bin/bash -xec  \"echo {{ x }}\"", EVALUATED_AGAIN),
            ("python3 -c \"print('{{ x }}')\"", EVALUATED_AGAIN),
            ("echo $(ssh host ls {{ x }})", EVALUATED_AGAIN),
            ("trap \"rm {{ x }}\" EXIT", EVALUATED_AGAIN),
            ("bash <<EOF\necho {{ x }}\nEOF", EVALUATED_AGAIN),
            ("cat <<EOF | ssh host\necho {{ x }}\nEOF", EVALUATED_AGAIN),
        ] {
            assert_eq!(check(command), Err((0, refusal)), "{command}");
        }
    }
}
