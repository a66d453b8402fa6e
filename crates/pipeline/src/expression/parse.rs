//! Parses tokens into an expression. Chains of operators, attributes, filters and conditions become one node each, so
//! that only brackets nest, at most [`MAX_DEPTH`] deep.

use serde_json::Value;

use super::Expression;
use super::filters::{Filter, Signature};
use super::functions::Function;
use super::predicates::Predicate;
use super::token::{Token, tokens};
use super::value::from_integer;

/// The index of a node in its arena.
pub(super) type Id = usize;

/// The deepest nesting of brackets.
const MAX_DEPTH: usize = 40;

/// A node of an expression.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Node {
    Constant(Value),
    /// A name from the context.
    Name(String),
    /// A function and its arguments.
    Call(Function, Vec<Id>),
    List(Vec<Id>),
    Map(Vec<(Id, Id)>),
    /// A value and the attributes, items, filters and tests applied to it in order.
    Chain(Id, Vec<Link>),
    /// A negation; the flag says whether the number of `not`s is odd.
    Not(Id, bool),
    /// A number; the flag says whether it is negated.
    Signed(Id, bool),
    Or(Vec<Id>),
    And(Vec<Id>),
    /// Operators of equal precedence, from left to right.
    Arithmetic(Id, Vec<(Operator, Id)>),
    /// A chain of comparisons, all of which must hold: `1 < x < 3`.
    Compare(Id, Vec<(Comparison, Id)>),
    /// Values with their conditions, and the final `else` value, if any.
    Choice(Vec<(Id, Id)>, Option<Id>),
}

/// An operation on the value before it.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Link {
    Attribute(String),
    Item(Id),
    Slice([Option<Id>; 3]),
    Filter(Filter, Arguments),
    /// A test; the flag says whether it is negated.
    Is(Predicate, Vec<Id>, bool),
}

/// The arguments of a filter.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Arguments {
    pub(super) plain: Vec<Id>,
    pub(super) named: Vec<(String, Id)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operator {
    Add,
    Subtract,
    Join,
    Multiply,
    Divide,
    DivideWhole,
    Remainder,
    Power,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
    NotIn,
}

/// Operators by precedence, the weakest first.
const RANKS: [&[(&str, Operator)]; 4] = [
    &[("+", Operator::Add), ("-", Operator::Subtract)],
    &[("~", Operator::Join)],
    &[
        ("*", Operator::Multiply),
        ("/", Operator::Divide),
        ("//", Operator::DivideWhole),
        ("%", Operator::Remainder),
    ],
    &[("**", Operator::Power)],
];

impl Node {
    /// Returns the first node of a chain.
    pub(super) fn head(&self) -> Option<Id> {
        if let Node::Chain(of, _) = self { Some(*of) } else { None }
    }

    /// Returns the name that it uses from the context, with its attributes.
    pub(super) fn path(&self, nodes: &[Node]) -> Option<String> {
        match self {
            Node::Name(name) => Some(name.clone()),
            Node::Call(function, _) => function.name().map(str::to_owned),
            Node::Chain(of, links) => {
                let Node::Name(name) = &nodes[*of] else { return None };
                let mut path = name.clone();
                for link in links {
                    let part = match link {
                        Link::Attribute(part) => part,
                        Link::Item(id) => match &nodes[*id] {
                            Node::Constant(Value::String(part)) => part,
                            _ => break,
                        },
                        _ => break,
                    };
                    path.push('.');
                    path.push_str(part);
                }
                Some(path)
            }
            _ => None,
        }
    }
}

/// Parses an expression.
pub(super) fn parse(text: &str) -> Result<Expression, String> {
    let mut parser = Parser { tokens: tokens(text)?, at: 0, nodes: Vec::new(), depth: 0 };
    let root = parser.expression()?;
    match parser.next() {
        None => Ok(Expression { nodes: parser.nodes, root }),
        Some(Token::Sign("(")) => Err("a value cannot be called; use a filter: `x | length`".into()),
        Some(token) => Err(format!("unexpected {} after the expression", token.describe())),
    }
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
    nodes: Vec<Node>,
    depth: usize,
}

impl Parser {
    fn next(&mut self) -> Option<Token> {
        let token = self.tokens.get(self.at).cloned();
        self.at += 1;
        token
    }

    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    fn is_sign(&self, sign: &str) -> bool {
        matches!(self.peek(), Some(Token::Sign(found)) if *found == sign)
    }

    fn is_word(&self, word: &str) -> bool {
        matches!(self.peek(), Some(Token::Name(found)) if found == word)
    }

    fn skip_sign(&mut self, sign: &str) -> bool {
        let found = self.is_sign(sign);
        self.at += usize::from(found);
        found
    }

    fn skip_word(&mut self, word: &str) -> bool {
        let found = self.is_word(word);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, sign: &str) -> Result<(), String> {
        if self.skip_sign(sign) { Ok(()) } else { Err(self.unexpected(&format!("`{sign}`"))) }
    }

    fn unexpected(&self, expected: &str) -> String {
        match self.peek() {
            Some(token) => format!("unexpected {}, expected {expected}", token.describe()),
            None => format!("it ends where {expected} is expected"),
        }
    }

    fn add(&mut self, node: Node) -> Id {
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    /// Parses `a if b else c if d else e`.
    fn expression(&mut self) -> Result<Id, String> {
        if self.depth >= MAX_DEPTH {
            return Err(format!("more than {MAX_DEPTH} nested brackets"));
        }
        self.depth += 1;
        let mut value = self.alternatives()?;
        let mut choices = Vec::new();
        let otherwise = loop {
            if !self.skip_word("if") {
                break Some(value);
            }
            let condition = self.alternatives()?;
            choices.push((value, condition));
            if !self.skip_word("else") {
                break None;
            }
            value = self.alternatives()?;
        };
        self.depth -= 1;
        Ok(match (choices.is_empty(), otherwise) {
            (true, Some(value)) => value,
            (_, otherwise) => self.add(Node::Choice(choices, otherwise)),
        })
    }

    /// Parses `a or b or c`.
    fn alternatives(&mut self) -> Result<Id, String> {
        let mut all = vec![self.conditions()?];
        while self.skip_word("or") {
            all.push(self.conditions()?);
        }
        Ok(if all.len() == 1 { all[0] } else { self.add(Node::Or(all)) })
    }

    /// Parses `a and not b`.
    fn conditions(&mut self) -> Result<Id, String> {
        let mut all = vec![self.condition()?];
        while self.skip_word("and") {
            all.push(self.condition()?);
        }
        Ok(if all.len() == 1 { all[0] } else { self.add(Node::And(all)) })
    }

    fn condition(&mut self) -> Result<Id, String> {
        let mut count = 0_usize;
        while self.skip_word("not") {
            count += 1;
        }
        let of = self.comparison()?;
        Ok(if count == 0 { of } else { self.add(Node::Not(of, !count.is_multiple_of(2))) })
    }

    fn comparison(&mut self) -> Result<Id, String> {
        let first = self.arithmetic(0)?;
        let mut rest = Vec::new();
        loop {
            let found = match self.peek() {
                Some(Token::Sign("==")) => Comparison::Equal,
                Some(Token::Sign("!=")) => Comparison::NotEqual,
                Some(Token::Sign("<")) => Comparison::Less,
                Some(Token::Sign("<=")) => Comparison::LessOrEqual,
                Some(Token::Sign(">")) => Comparison::Greater,
                Some(Token::Sign(">=")) => Comparison::GreaterOrEqual,
                Some(Token::Name(name)) if name == "in" => Comparison::In,
                Some(Token::Name(name)) if name == "not" => Comparison::NotIn,
                _ => break,
            };
            self.at += 1;
            if found == Comparison::NotIn && !self.skip_word("in") {
                return Err(self.unexpected("`in`"));
            }
            rest.push((found, self.arithmetic(0)?));
        }
        Ok(if rest.is_empty() { first } else { self.add(Node::Compare(first, rest)) })
    }

    /// Parses operators of this precedence and all that bind more tightly.
    fn arithmetic(&mut self, rank: usize) -> Result<Id, String> {
        let Some(operators) = RANKS.get(rank) else { return self.operand() };
        let first = self.arithmetic(rank + 1)?;
        let mut rest = Vec::new();
        while let Some(Token::Sign(sign)) = self.peek() {
            let Some((_, operator)) = operators.iter().find(|(known, _)| known == sign) else { break };
            self.at += 1;
            rest.push((*operator, self.arithmetic(rank + 1)?));
        }
        Ok(if rest.is_empty() { first } else { self.add(Node::Arithmetic(first, rest)) })
    }

    /// Parses a signed value with its attributes, and its filters, which apply to the signed value.
    fn operand(&mut self) -> Result<Id, String> {
        let mut of = self.signed()?;
        let mut links = Vec::new();
        loop {
            if self.skip_sign("|") {
                links.push(self.filter()?);
            } else if self.skip_word("is") {
                links.push(self.test()?);
            } else {
                break;
            }
        }
        if !links.is_empty() {
            of = self.chain(of, links);
        }
        Ok(of)
    }

    fn signed(&mut self) -> Result<Id, String> {
        let (mut count, mut minus) = (0, false);
        while let Some(Token::Sign(sign @ ("-" | "+"))) = self.peek() {
            minus ^= *sign == "-";
            count += 1;
            self.at += 1;
        }
        let of = self.postfix()?;
        Ok(if count == 0 { of } else { self.add(Node::Signed(of, minus)) })
    }

    /// Adds links to a value. A name's path stays one chain.
    fn chain(&mut self, of: Id, links: Vec<Link>) -> Id {
        if of + 1 == self.nodes.len()
            && let Some(Node::Chain(_, before)) = self.nodes.last_mut()
        {
            before.extend(links);
            return of;
        }
        self.add(Node::Chain(of, links))
    }

    fn postfix(&mut self) -> Result<Id, String> {
        let of = self.primary()?;
        let mut links = Vec::new();
        loop {
            if self.skip_sign(".") {
                links.push(match self.next() {
                    Some(Token::Name(name)) => Link::Attribute(name),
                    Some(Token::Integer(index)) => {
                        let index = from_integer(index)?;
                        Link::Item(self.add(Node::Constant(index)))
                    }
                    _ => {
                        self.at -= 1;
                        return Err(self.unexpected("a name or a number after `.`"));
                    }
                });
            } else if self.skip_sign("[") {
                links.push(self.subscript()?);
            } else {
                break;
            }
        }
        // Parsing a subscript has added nodes, so the chain is added after them.
        Ok(if links.is_empty() { of } else { self.add(Node::Chain(of, links)) })
    }

    /// Parses `[item]` or `[start:end:step]` after the opening bracket.
    fn subscript(&mut self) -> Result<Link, String> {
        let mut parts = [None; 3];
        let mut count = 0;
        loop {
            if !self.is_sign(":") && !self.is_sign("]") {
                parts[count] = Some(self.expression()?);
            }
            if count < 2 && self.skip_sign(":") {
                count += 1;
            } else {
                break;
            }
        }
        self.expect("]")?;
        match (count, parts[0]) {
            (0, Some(item)) => Ok(Link::Item(item)),
            (0, None) => Err("`[]` needs an index".into()),
            _ => Ok(Link::Slice(parts)),
        }
    }

    fn filter(&mut self) -> Result<Link, String> {
        let name = self.name("the name of a filter")?;
        let filter = Filter::named(&name)?;
        let arguments = if self.skip_sign("(") { self.arguments()? } else { Arguments::default() };
        Signature::of(filter).check(&arguments)?;
        Ok(Link::Filter(filter, arguments))
    }

    fn test(&mut self) -> Result<Link, String> {
        let negated = self.skip_word("not");
        let name = self.name("the name of a test")?;
        let test = Predicate::named(&name)?;
        let mut arguments = Vec::new();
        if self.skip_sign("(") {
            let found = self.arguments()?;
            if !found.named.is_empty() {
                return Err(format!("the test `{name}` takes no named arguments"));
            }
            arguments = found.plain;
        } else if test.arity() == 1 {
            // A test with one argument and no brackets: `x is divisibleby 3`.
            arguments.push(self.signed()?);
        }
        if arguments.len() != test.arity() {
            return Err(format!("the test `{name}` takes {} values, not {}", test.arity(), arguments.len()));
        }
        Ok(Link::Is(test, arguments, negated))
    }

    fn name(&mut self, expected: &str) -> Result<String, String> {
        match self.peek() {
            Some(Token::Name(name)) => {
                let name = name.clone();
                self.at += 1;
                Ok(name)
            }
            _ => Err(self.unexpected(expected)),
        }
    }

    /// Parses `a, b, key=c)` after the opening bracket.
    fn arguments(&mut self) -> Result<Arguments, String> {
        let mut arguments = Arguments::default();
        while !self.skip_sign(")") {
            if !arguments.plain.is_empty() || !arguments.named.is_empty() {
                self.expect(",")?;
                if self.skip_sign(")") {
                    break;
                }
            }
            let key = match (self.peek(), self.tokens.get(self.at + 1)) {
                (Some(Token::Name(name)), Some(Token::Sign("="))) => Some(name.clone()),
                _ => None,
            };
            match key {
                Some(key) => {
                    self.at += 2;
                    let value = self.expression()?;
                    arguments.named.push((key, value));
                }
                None if !arguments.named.is_empty() => {
                    return Err("a positional argument cannot follow a named one".into());
                }
                None => {
                    let value = self.expression()?;
                    arguments.plain.push(value);
                }
            }
        }
        Ok(arguments)
    }

    /// Parses the arguments of a function, from the opening bracket.
    fn call(&mut self, name: &str) -> Result<Id, String> {
        self.expect("(")?;
        let arguments = self.arguments()?;
        if !arguments.named.is_empty() {
            return Err(format!("the function `{name}` takes no named arguments"));
        }
        let function = Function::named(name, arguments.plain.len())?;
        Ok(self.add(Node::Call(function, arguments.plain)))
    }

    fn primary(&mut self) -> Result<Id, String> {
        let node = match self.next() {
            Some(Token::Name(name)) => match name.as_str() {
                "true" | "True" => Node::Constant(Value::Bool(true)),
                "false" | "False" => Node::Constant(Value::Bool(false)),
                "none" | "None" | "null" => Node::Constant(Value::Null),
                "if" | "else" | "and" | "or" | "in" | "is" => {
                    self.at -= 1;
                    return Err(self.unexpected("a value"));
                }
                _ if self.is_sign("(") => return self.call(&name),
                _ => Node::Name(name),
            },
            Some(Token::Text(mut text)) => {
                while let Some(Token::Text(more)) = self.peek() {
                    text.push_str(more);
                    self.at += 1;
                }
                Node::Constant(Value::String(text))
            }
            Some(Token::Integer(number)) => Node::Constant(from_integer(number)?),
            Some(Token::Number(number)) => Node::Constant(Value::from(number)),
            Some(Token::Sign("(")) => return self.bracketed(),
            Some(Token::Sign("[")) => Node::List(self.listed("]")?),
            Some(Token::Sign("{")) => Node::Map(self.mapped()?),
            _ => {
                self.at -= 1;
                return Err(self.unexpected("a value"));
            }
        };
        Ok(self.add(node))
    }

    /// Parses `(a)`, or a list written as `(a, b)`, after the opening bracket.
    fn bracketed(&mut self) -> Result<Id, String> {
        if self.skip_sign(")") {
            return Ok(self.add(Node::List(Vec::new())));
        }
        let first = self.expression()?;
        if self.skip_sign(")") {
            return Ok(first);
        }
        self.expect(",")?;
        let mut all = vec![first];
        all.extend(self.listed(")")?);
        Ok(self.add(Node::List(all)))
    }

    fn listed(&mut self, end: &str) -> Result<Vec<Id>, String> {
        let mut all = Vec::new();
        while !self.skip_sign(end) {
            if !all.is_empty() {
                self.expect(",")?;
                if self.skip_sign(end) {
                    break;
                }
            }
            all.push(self.expression()?);
        }
        Ok(all)
    }

    fn mapped(&mut self) -> Result<Vec<(Id, Id)>, String> {
        let mut all = Vec::new();
        while !self.skip_sign("}") {
            if !all.is_empty() {
                self.expect(",")?;
                if self.skip_sign("}") {
                    break;
                }
            }
            let key = self.expression()?;
            self.expect(":")?;
            all.push((key, self.expression()?));
        }
        Ok(all)
    }
}
