//! Splits an expression into tokens: names, texts, numbers and signs. Limits their number.

/// The longest expression in bytes: some hundred lines.
const MAX_BYTES: usize = 16 << 10;
/// The most tokens of one expression.
const MAX_TOKENS: usize = 4_000;

/// A token of an expression.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token {
    Name(String),
    Text(String),
    Integer(i128),
    Number(f64),
    Sign(&'static str),
}

impl Token {
    /// Describes the token for messages.
    pub(super) fn describe(&self) -> String {
        match self {
            Token::Name(name) => format!("`{name}`"),
            Token::Text(_) => "a text".to_owned(),
            Token::Integer(_) | Token::Number(_) => "a number".to_owned(),
            Token::Sign(sign) => format!("`{sign}`"),
        }
    }
}

/// All signs. Those of two characters come first, so that the longest match wins.
const SIGNS: [&str; 25] = [
    "**", "//", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "<", ">", "(", ")", "[", "]", "{", "}",
    ",", ".", ":", "|", "=",
];

/// Splits a text into tokens.
pub(super) fn tokens(text: &str) -> Result<Vec<Token>, String> {
    if text.len() > MAX_BYTES {
        return Err(format!("it has {} bytes; an expression has at most {MAX_BYTES}", text.len()));
    }
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let (token, after) = match first {
            'a'..='z' | 'A'..='Z' | '_' => name(rest),
            '0'..='9' => number(rest)?,
            '\'' | '"' => quoted(rest, first)?,
            _ => match SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
                Some(sign) => (Token::Sign(sign), &rest[sign.len()..]),
                None => return Err(format!("unexpected {first:?}")),
            },
        };
        if tokens.len() >= MAX_TOKENS {
            return Err(format!("it has more than {MAX_TOKENS} tokens"));
        }
        tokens.push(token);
        rest = after.trim_start();
    }
    Ok(tokens)
}

fn name(text: &str) -> (Token, &str) {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
    (Token::Name(text[..end].to_owned()), &text[end..])
}

/// Reads a decimal number, or a whole number in base 2, 8 or 16. `_` may separate digits.
fn number(text: &str) -> Result<(Token, &str), String> {
    let radix = match text.get(..2).map(str::to_ascii_lowercase).as_deref() {
        Some("0x") => 16,
        Some("0o") => 8,
        Some("0b") => 2,
        _ => 10,
    };
    if radix != 10 {
        let digits = &text[2..];
        let end = digits.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(digits.len());
        let value = i128::from_str_radix(&digits[..end].replace('_', ""), radix);
        return value.map(|value| (Token::Integer(value), &digits[end..])).map_err(|_| not_a_number(text));
    }
    let digits = |text: &str| text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
    let mut end = digits(text);
    let mut whole = true;
    // A point belongs to a number if a digit follows: `1.5`, but not `x.1.name`.
    if text[end..].starts_with('.') && text[end + 1..].starts_with(|c: char| c.is_ascii_digit()) {
        whole = false;
        end += 1 + digits(&text[end + 1..]);
    }
    if text[end..].starts_with(['e', 'E']) {
        let signed = text[end + 1..].strip_prefix(['+', '-']).unwrap_or(&text[end + 1..]);
        if signed.starts_with(|c: char| c.is_ascii_digit()) {
            whole = false;
            end = text.len() - signed.len() + digits(signed);
        }
    }
    if text[end..].starts_with(|c: char| c.is_ascii_alphabetic()) {
        return Err(not_a_number(text));
    }
    let plain = text[..end].replace('_', "");
    let token = if whole {
        plain.parse().map(Token::Integer).map_err(|_| not_a_number(text))?
    } else {
        match plain.parse::<f64>() {
            Ok(value) if value.is_finite() => Token::Number(value),
            _ => return Err(not_a_number(text)),
        }
    };
    Ok((token, &text[end..]))
}

fn not_a_number(text: &str) -> String {
    let shown: String = text.chars().take_while(|c| c.is_ascii_alphanumeric()).take(20).collect();
    format!("`{shown}` is not a number")
}

/// Reads a text in quotes, with the escapes of JSON and Python.
fn quoted(text: &str, quote: char) -> Result<(Token, &str), String> {
    let mut value = String::new();
    let mut characters = text[1..].char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '\\' => {
                let Some((_, escaped)) = characters.next() else { break };
                value.push(match escaped {
                    'n' => '\n',
                    'r' => '\r',
                    't' => '\t',
                    'b' => '\u{8}',
                    'f' => '\u{c}',
                    'x' => code(&mut characters, 2)?,
                    'u' => unicode(&mut characters)?,
                    other @ ('\\' | '"' | '\'' | '/') => other,
                    other => return Err(format!("`\\{other}` is not a valid escape in a text")),
                });
            }
            _ if character == quote => return Ok((Token::Text(value), &text[at + 2..])),
            _ => value.push(character),
        }
    }
    Err("a text has no closing quote".into())
}

/// Reads the four digits of a `\u` escape, or both halves of a surrogate pair.
fn unicode(characters: &mut std::str::CharIndices<'_>) -> Result<char, String> {
    let first = digits(characters, 4)?;
    if !(0xd800..0xdc00).contains(&first) {
        return char::from_u32(first).ok_or_else(|| "`\\u` with half a surrogate pair".into());
    }
    let second = match (characters.next(), characters.next()) {
        (Some((_, '\\')), Some((_, 'u'))) => digits(characters, 4)?,
        _ => 0,
    };
    let both = char::decode_utf16([first as u16, second as u16]).next();
    both.and_then(Result::ok).ok_or_else(|| "`\\u` with half a surrogate pair".into())
}

fn code(characters: &mut std::str::CharIndices<'_>, count: usize) -> Result<char, String> {
    char::from_u32(digits(characters, count)?)
        .ok_or_else(|| "an escape that is not a Unicode character".into())
}

fn digits(characters: &mut std::str::CharIndices<'_>, count: usize) -> Result<u32, String> {
    let text: String = characters.take(count).map(|(_, c)| c).collect();
    if text.len() == count && text.bytes().all(|b| b.is_ascii_hexdigit()) {
        u32::from_str_radix(&text, 16).map_err(|error| error.to_string())
    } else {
        Err(format!("an escape needs {count} hexadecimal digits"))
    }
}
