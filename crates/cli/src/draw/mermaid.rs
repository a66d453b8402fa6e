//! A graph in Mermaid's language, which wikis and code hosts draw.

use std::fmt::Write;

use super::{Graph, Node};

/// The statuses with their fill and outline colours; the SVG uses them too.
pub(crate) const COLOURS: [(&str, &str, &str); 6] = [
    ("done", "#dcfce7", "#15803d"),
    ("failed", "#fee2e2", "#b91c1c"),
    ("running", "#cffafe", "#0e7490"),
    ("skipped", "#fef9c3", "#a16207"),
    ("cancelled", "#fef3c7", "#b45309"),
    ("waiting", "#f3f4f6", "#6b7280"),
];

/// Returns the name of a status's colour. A status without a colour of its own is painted as `waiting`, because the
/// step has not started.
pub(crate) fn painted(status: &str) -> &str {
    COLOURS.iter().map(|(name, ..)| *name).find(|name| *name == status).unwrap_or("waiting")
}

pub(crate) fn mermaid(graph: &Graph) -> String {
    let mut text = String::from("flowchart TD\n");
    for (no, node) in graph.nodes.iter().enumerate() {
        let (open, close) = match node.kind.as_str() {
            "gate" => ("{{\"", "\"}}"),
            "wait" => ("([\"", "\"])"),
            "pipeline" => ("[[\"", "\"]]"),
            _ => ("[\"", "\"]"),
        };
        let class =
            node.status.as_deref().map(|status| format!(":::{}", painted(status))).unwrap_or_default();
        let _ = writeln!(text, "  s{no}{open}{}{close}{class}", label(node));
    }
    for (no, node) in graph.nodes.iter().enumerate() {
        for need in &node.needs {
            let _ = writeln!(text, "  s{need} --> s{no}");
        }
        if let Some(to) = node.rework {
            let _ = writeln!(text, "  s{no} -. rework .-> s{to}");
        }
    }
    if graph.nodes.iter().any(|node| node.status.is_some()) {
        for (name, fill, stroke) in COLOURS {
            let _ = writeln!(text, "  classDef {name} fill:{fill},stroke:{stroke},color:#111827");
        }
    }
    text
}

fn label(node: &Node) -> String {
    let marks = node.marks();
    let second = match marks.as_str() {
        "run" => String::new(),
        _ => format!("<br/>{}", escaped(&marks)),
    };
    let status = match (&node.status, node.tries()) {
        (Some(status), Some(tries)) => format!("<br/>{} ({tries})", escaped(status)),
        (Some(status), None) => format!("<br/>{}", escaped(status)),
        (None, _) => String::new(),
    };
    format!("{}{second}{status}", escaped(&node.id))
}

/// Returns a text for use inside quotes. Mermaid writes characters as `#number;`.
fn escaped(text: &str) -> String {
    let keep = |c: char| c.is_alphanumeric() || " -_.()[]×".contains(c);
    text.chars().map(|c| if keep(c) { c.to_string() } else { format!("#{};", u32::from(c)) }).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{DIAMOND, graph};
    use super::*;

    #[test]
    fn a_graph_in_mermaid() {
        let mut graph = graph(DIAMOND);
        graph.nodes[1].rework = Some(0);
        graph.nodes[2].fan_out = Some("foreach".into());
        graph.nodes[3].kind = "gate".into();
        let expected = r#"
flowchart TD
  s0["build"]
  s1["lint"]
  s2["test<br/>run [foreach]"]
  s3{{"publish<br/>gate"}}
  s0 --> s1
  s1 -. rework .-> s0
  s0 --> s2
  s1 --> s3
  s2 --> s3
"#;
        assert_eq!(mermaid(&graph), expected.trim_start());
    }

    #[test]
    fn names_cannot_break_out() {
        let mut graph = graph(&[("\"]; click s0 \"javascript:x\"", &[])]);
        graph.nodes[0].status = Some("requested".into());
        let drawn = mermaid(&graph);
        assert!(
            drawn.contains("s0[\"#34;]#59; click s0 #34;javascript#58;x#34;<br/>requested\"]:::waiting\n"),
            "{drawn}"
        );
        assert!(drawn.contains("classDef waiting fill:#f3f4f6,"), "{drawn}");
    }
}
