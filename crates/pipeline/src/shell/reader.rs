//! Reads a command text character by character: its quoting, its simple commands and its pipelines.

use std::collections::BTreeMap;

use super::evaluators::{self, SUBSTITUTED, VALUE, Verdict};
use super::{
    AFTER_BACKSLASH, BESIDE_INTEGERS, Dialect, EVALUATED_AGAIN, IN_ARITHMETIC, IN_DOUBLE_BRACKETS,
    IN_EXPANSION, IN_SINGLE_QUOTES, IN_SUBSCRIPT, Quoting, READ_AS_PROGRAM, Reading, Refusal,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Context {
    /// A list of commands: the whole text, or the content of `$( )`, `( )`, `<( )` and backticks.
    Commands(Opened),
    Single,
    /// `$'…'`, in which a backslash escapes.
    AnsiSingle,
    Double,
    Comment,
    /// `${ }`; the flag says whether it is inside double quotes.
    Expansion(bool),
    /// `(( ))`, `$(( ))` or `$[ ]`, with the number of inner brackets that are open.
    Arithmetic(Bracket, u32),
    /// `NAME=( … )`; the flag says whether the current word is inside a subscript.
    Array(bool),
}

/// The token that opened a list of commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Opened {
    Text,
    /// `$(`, `<(` or `>(`: the output becomes part of a word outside.
    Substitution,
    Group,
    Backtick,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bracket {
    Round,
    Square,
}

/// A here-document that starts at the next line.
#[derive(Debug, Clone)]
struct HereDocument {
    delimiter: String,
    literal: bool,
    strip_tabs: bool,
}

/// A word of a simple command, with the values in it.
#[derive(Debug, Clone, Default)]
struct Word {
    /// The text of the word, with [`VALUE`] in place of each value.
    text: String,
    values: Vec<usize>,
    /// Whether it names a file to read from or write to.
    is_target: bool,
}

/// A list of commands that is being read.
#[derive(Debug, Default)]
struct Frame {
    /// The words of the current simple command; the last one is incomplete.
    words: Vec<Word>,
    /// The values that reach the input of every command in the list.
    input: Vec<usize>,
    /// The values that reach the input of the next command of the pipeline.
    piped: Vec<usize>,
    /// The values of a here-string of the current command.
    here_string: Vec<usize>,
    /// The values of groups that ended in the current command.
    closed: Vec<usize>,
    /// All values of commands that have ended.
    all: Vec<usize>,
    /// Whether any command has ended.
    has_commands: bool,
    /// Whether the next word is a here-string.
    here_string_next: bool,
    /// Whether the next word names a file.
    target_next: bool,
    /// Whether `[[` is open.
    in_double_brackets: bool,
    /// For each open compound command, the number of values before it and the values that reach its input.
    compounds: Vec<(usize, Vec<usize>)>,
}

/// A reader of one command text. See the module's documentation.
pub(super) struct Reader {
    dialect: Dialect,
    contexts: Vec<Context>,
    frames: Vec<Frame>,
    escaped: bool,
    before: [char; 2],
    /// Whether the current line has an interpreter that reads its program from its input, as from a here-document.
    line_interprets: bool,
    /// A here-document whose delimiter is being read, and whether the delimiter has started.
    announced: Option<(HereDocument, bool)>,
    pending: Vec<HereDocument>,
    body: Option<(HereDocument, String)>,
    /// Whether the text declares variables that evaluate what is assigned to them.
    has_integers: bool,
    quotings: Vec<Quoting>,
    refused: BTreeMap<usize, Refusal>,
    doubtful: BTreeMap<usize, Verdict>,
}

impl Reader {
    pub(super) fn new(dialect: Dialect) -> Reader {
        Reader {
            dialect,
            contexts: vec![Context::Commands(Opened::Text)],
            frames: vec![Frame::default()],
            escaped: false,
            before: ['\0'; 2],
            line_interprets: false,
            announced: None,
            pending: Vec::new(),
            body: None,
            has_integers: false,
            quotings: Vec::new(),
            refused: BTreeMap::new(),
            doubtful: BTreeMap::new(),
        }
    }

    /// Finishes the text and returns what was found.
    pub(super) fn finish(mut self) -> Result<Reading, (usize, Refusal)> {
        while self.frames.len() > 1 {
            self.close_frame();
        }
        self.command_ends('\n');
        if self.has_integers && !self.quotings.is_empty() {
            self.refuse(0, BESIDE_INTEGERS);
        }
        match self.refused.first_key_value() {
            Some((value, refusal)) => Err((*value, *refusal)),
            None => Ok(Reading { quotings: self.quotings, doubtful: self.doubtful.into_iter().collect() }),
        }
    }

    fn context(&self) -> Context {
        self.contexts.last().copied().unwrap_or(Context::Commands(Opened::Text))
    }

    fn frame(&mut self) -> &mut Frame {
        if self.frames.is_empty() {
            self.frames.push(Frame::default());
        }
        let last = self.frames.len() - 1;
        &mut self.frames[last]
    }

    fn refuse(&mut self, value: usize, refusal: Refusal) {
        self.refused.entry(value).or_insert(refusal);
    }

    /// Reads a value: part of a word, and no special character.
    pub(super) fn value(&mut self) {
        let value = self.quotings.len();
        let quoted = self.body.is_some() || matches!(self.context(), Context::Double | Context::Comment);
        self.quotings.push(if quoted { Quoting::Quoted } else { Quoting::Bare });
        if let Err(refusal) = self.stands() {
            self.refuse(value, refusal);
        }
        self.escaped = false;
        self.before = [self.before[1], VALUE];
        if let Some((_, line)) = &mut self.body {
            line.push(VALUE);
        } else if self.context() != Context::Comment {
            self.word(VALUE);
            if let Some(word) = self.frame().words.last_mut() {
                word.values.push(value);
            }
        }
    }

    /// Returns whether quoting allows a value here.
    fn stands(&mut self) -> Result<(), Refusal> {
        if let Some((document, _)) = &self.body {
            return if document.literal {
                Err(IN_SINGLE_QUOTES)
            } else if self.line_interprets {
                Err(READ_AS_PROGRAM)
            } else {
                Ok(())
            };
        }
        if self.escaped {
            return Err(AFTER_BACKSLASH);
        }
        for context in &self.contexts {
            match context {
                Context::Arithmetic(..) => return Err(IN_ARITHMETIC),
                Context::Expansion(_) => return Err(IN_EXPANSION),
                Context::Array(true) => return Err(IN_SUBSCRIPT),
                Context::Single | Context::AnsiSingle => return Err(IN_SINGLE_QUOTES),
                _ => {}
            }
        }
        let opens = |frame: &Frame| {
            frame.in_double_brackets || frame.words.last().is_some_and(|word| word.text == "[[")
        };
        if self.frames.iter().any(opens) {
            return Err(IN_DOUBLE_BRACKETS);
        }
        let text = self.frame().words.last().map(|word| word.text.clone()).unwrap_or_default();
        if self.context() != Context::Comment && is_subscript(&text) {
            return Err(IN_SUBSCRIPT);
        }
        Ok(())
    }

    pub(super) fn read(&mut self, c: char) {
        if self.body.is_some() {
            self.read_body(c);
            return;
        }
        let [earlier, last] = self.before;
        self.before = [last, c];
        if std::mem::take(&mut self.escaped) {
            self.before[1] = VALUE;
            // A line that continues on the next one.
            if c != '\n' {
                self.word(c);
            }
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
                '(' if last == '$' => self.open(Opened::Substitution),
                '[' if last == '$' => self.contexts.push(Context::Arithmetic(Bracket::Square, 0)),
                '{' if last == '$' => self.contexts.push(Context::Expansion(true)),
                _ => self.word(c),
            },
            Context::Expansion(quoted) => match c {
                '\\' => self.escaped = true,
                '}' => self.leave(),
                '"' => self.contexts.push(Context::Double),
                '\'' if !quoted => self.contexts.push(Context::Single),
                '`' => self.backtick(),
                '(' if last == '$' => self.open(Opened::Substitution),
                '{' if last == '$' => self.contexts.push(Context::Expansion(quoted)),
                _ => {}
            },
            Context::Arithmetic(bracket, open) => self.arithmetic(c, bracket, open),
            Context::Commands(_) | Context::Array(_) => self.command(c, last, earlier),
        }
    }

    fn command(&mut self, c: char, last: char, earlier: char) {
        let word_begins = matches!(last, '\0' | ' ' | '\t' | '\n' | ';' | '&' | '|' | '(' | ')');
        let in_array = matches!(self.context(), Context::Array(_));
        match c {
            '\\' => self.escaped = true,
            '\'' if last == '$' => self.contexts.push(Context::AnsiSingle),
            '\'' => self.contexts.push(Context::Single),
            '"' => self.contexts.push(Context::Double),
            '`' => self.backtick(),
            '#' if word_begins => self.contexts.push(Context::Comment),
            // `((` or `$((`: the first parenthesis was read as a group or a substitution.
            '(' if last == '(' && self.can_be_arithmetic() => {
                self.contexts.pop();
                self.frames.pop();
                self.contexts.push(Context::Arithmetic(Bracket::Round, 0));
            }
            '(' if last == '$' => self.open(Opened::Substitution),
            '(' if matches!(last, '<' | '>') => {
                self.frame().target_next = false;
                self.open(Opened::Substitution);
            }
            '(' if last == '=' && self.is_assignment() => self.contexts.push(Context::Array(false)),
            '[' if last == '$' => self.contexts.push(Context::Arithmetic(Bracket::Square, 0)),
            '{' if last == '$' => self.contexts.push(Context::Expansion(false)),
            ')' if in_array => self.leave(),
            '[' if in_array && word_begins => self.set_array(true),
            ']' if in_array => self.set_array(false),
            ' ' | '\t' | '\n' if in_array => {
                self.set_array(false);
                // The whole is one assignment.
                self.word(',');
            }
            _ if in_array => self.word(c),
            '(' => self.open(Opened::Group),
            ')' if self.frames.len() > 1 && self.context() != Context::Commands(Opened::Backtick) => {
                self.close_frame();
            }
            '<' if last == '<' && earlier == '<' => {
                self.announced = None;
                self.frame().target_next = false;
                self.frame().here_string_next = true;
            }
            '<' if last == '<' => {
                let document = HereDocument { delimiter: String::new(), literal: false, strip_tabs: false };
                self.announced = Some((document, false));
                self.frame().target_next = false;
            }
            '<' | '>' => {
                self.end_word();
                self.frame().target_next = true;
            }
            '&' if matches!(last, '<' | '>') => {}
            '\n' | ';' | '&' | '|' => self.command_ends(c),
            _ => self.word(c),
        }
    }

    /// Returns whether a second parenthesis starts arithmetic: nothing is between the two.
    fn can_be_arithmetic(&self) -> bool {
        let group = matches!(self.context(), Context::Commands(Opened::Group | Opened::Substitution));
        group && self.frames.len() > 1 && self.frames.last().is_some_and(|frame| frame.words.is_empty())
    }

    fn is_assignment(&mut self) -> bool {
        self.frame().words.last().is_some_and(|word| evaluators::assigned(&word.text).is_some())
    }

    fn set_array(&mut self, in_subscript: bool) {
        if let Some(context @ Context::Array(_)) = self.contexts.last_mut() {
            *context = Context::Array(in_subscript);
        }
    }

    fn arithmetic(&mut self, c: char, bracket: Bracket, open: u32) {
        let open = match (bracket, c, open) {
            (Bracket::Round, '(', _) | (Bracket::Square, '[', _) => open + 1,
            (Bracket::Round, ')', 0) if self.before[0] == ')' => return self.leave(),
            (Bracket::Square, ']', 0) => return self.leave(),
            (Bracket::Round, ')', _) | (Bracket::Square, ']', _) => open.saturating_sub(1),
            _ => return,
        };
        self.leave();
        self.contexts.push(Context::Arithmetic(bracket, open));
    }

    fn open(&mut self, how: Opened) {
        let input = if how == Opened::Group { self.frame().piped.clone() } else { Vec::new() };
        self.contexts.push(Context::Commands(how));
        self.frames.push(Frame { input, ..Frame::default() });
    }

    fn backtick(&mut self) {
        let open = self.contexts.iter().rposition(|context| *context == Context::Commands(Opened::Backtick));
        match open {
            Some(at) => {
                while self.contexts.len() > at {
                    match self.context() {
                        Context::Commands(_) => self.close_frame(),
                        _ => self.leave(),
                    }
                }
            }
            None => self.open(Opened::Backtick),
        }
    }

    fn leave(&mut self) {
        self.contexts.pop();
    }

    /// Ends a list of commands. The output of a substitution, with its values, becomes part of the word outside. A
    /// group is a command of the pipeline outside.
    fn close_frame(&mut self) {
        self.command_ends(')');
        let Some(at) = self.contexts.iter().rposition(|context| matches!(context, Context::Commands(_)))
        else {
            return;
        };
        let how = self.contexts[at];
        self.contexts.truncate(at);
        let Some(inner) = self.frames.pop() else { return };
        if how == Context::Commands(Opened::Group) {
            let frame = self.frame();
            if !inner.has_commands && frame.words.iter().filter(|word| !word.text.is_empty()).count() == 1 {
                // The header of a function, `NAME()`; its body follows.
                frame.words.clear();
            }
            frame.closed.extend(inner.all.iter().copied());
            frame.all.extend(inner.all);
            return;
        }
        // The output of a substitution without values is not checked.
        self.word(if inner.all.is_empty() { SUBSTITUTED } else { VALUE });
        if let Some(word) = self.frame().words.last_mut() {
            word.values.extend(inner.all);
        }
    }

    /// Adds a character to a word, quoted or not. Blanks outside quotes end the word.
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
            return;
        }
        if !quoted && matches!(c, ' ' | '\t') {
            return self.end_word();
        }
        let frame = self.frame();
        let begins = frame.words.last().is_none_or(|word| word.text.is_empty());
        if frame.words.is_empty() {
            frame.words.push(Word::default());
        }
        let is_target = begins && std::mem::take(&mut frame.target_next);
        if let Some(word) = frame.words.last_mut() {
            word.is_target |= is_target;
            word.text.push(c);
        }
    }

    /// Ends the current word, if there is one.
    fn end_word(&mut self) {
        let frame = self.frame();
        let Some(word) = frame.words.last().filter(|word| !word.text.is_empty()) else { return };
        match word.text.as_str() {
            "[[" => frame.in_double_brackets = true,
            "]]" => frame.in_double_brackets = false,
            _ => {}
        }
        if std::mem::take(&mut frame.here_string_next)
            && let Some(word) = frame.words.last_mut()
        {
            word.is_target = true;
            let values = word.values.clone();
            frame.here_string.extend(values);
        }
        frame.words.push(Word::default());
    }

    fn document_announced(&mut self) {
        if let Some((document, true)) = self.announced.take() {
            self.pending.push(document);
        }
    }

    fn command_ends(&mut self, by: char) {
        self.document_announced();
        self.end_word();
        self.judge(by == '|' && self.before[0] != '|');
        if by == '\n' {
            self.begin_body();
        }
    }

    /// Checks a finished simple command: whether it evaluates its values, or those that reach its input.
    fn judge(&mut self, is_piped_on: bool) {
        let (dialect, count) = (self.dialect, self.quotings.len());
        let frame = self.frame();
        let mut words = std::mem::take(&mut frame.words);
        words.retain(|word| !word.text.is_empty());
        frame.target_next = false;
        frame.here_string_next = false;
        let arguments: Vec<&Word> = words.iter().filter(|word| !word.is_target).collect();
        let texts: Vec<&str> = arguments.iter().map(|word| word.text.as_str()).collect();
        let own: Vec<usize> = words.iter().flat_map(|word| word.values.iter().copied()).collect();

        let mut reaching = std::mem::take(&mut frame.piped);
        reaching.append(&mut frame.here_string);
        let first_own = own.iter().min().copied().unwrap_or(count);
        for _ in 0..evaluators::compounds_opened(&texts) {
            frame.compounds.push((first_own, reaching.clone()));
        }
        reaching.extend(frame.input.iter().copied());
        reaching.extend(frame.compounds.iter().flat_map(|(_, input)| input.iter().copied()));

        let mut outgoing = own.clone();
        outgoing.append(&mut frame.closed);
        outgoing.extend(reaching.iter().copied());
        if evaluators::closes_compound(&texts) {
            let from = frame.compounds.pop().map_or(count, |(from, _)| from);
            outgoing.extend(from..count);
        }
        frame.all.extend(own);
        frame.has_commands |= !texts.is_empty();
        if is_piped_on {
            frame.piped = outgoing;
        }

        let verdicts: Vec<(usize, Verdict)> = arguments
            .iter()
            .enumerate()
            .filter(|(_, word)| !word.values.is_empty())
            .flat_map(|(at, word)| {
                let verdict = evaluators::word(&texts, at, dialect);
                word.values.iter().map(move |value| (*value, verdict.clone()))
            })
            .collect();
        self.has_integers |= evaluators::declares_integers(&texts);
        if evaluators::reads_program(&texts) {
            self.line_interprets = true;
            reaching.into_iter().for_each(|value| self.refuse(value, READ_AS_PROGRAM));
        }
        for (value, verdict) in verdicts {
            match verdict {
                Verdict::Data => {}
                Verdict::Evaluated => self.refuse(value, EVALUATED_AGAIN),
                doubtful => drop(self.doubtful.entry(value).or_insert(doubtful)),
            }
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

/// Returns whether the word so far ends inside the subscript of an array, `NAME[`, which is arithmetic.
fn is_subscript(word: &str) -> bool {
    word.rsplit_once('[').is_some_and(|(name, inside)| {
        !inside.contains(']')
            && !name.is_empty()
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    })
}
