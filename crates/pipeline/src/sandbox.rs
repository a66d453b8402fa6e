//! The sandbox of a step: `sandbox:` of the pipeline and of the step, merged key by key.

use serde::{Deserialize, Serialize};
use sprag_lifecycle::mutant;

use crate::decode::texts;
use crate::yaml::Node;

/// The word for the run's own folder in the list of writable paths.
const WORKTREE: &str = "worktree";
/// The units of sizes, and their bytes.
const UNITS: [(&str, u64); 4] = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)];
/// The least memory with which a shell starts.
const MIN_MEMORY_BYTES: u64 = 1 << 20;

/// The bounds of a step's processes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SandboxSpec {
    /// Whether the step may write in the run's worktree or folder.
    pub write_worktree: bool,
    /// Further paths that the step may write: absolute, or below the home folder as `~/…`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub write: Vec<String>,
    /// Further paths that the step may read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub read: Vec<String>,
    /// The network that the step reaches.
    pub network: SandboxNetwork,
    /// The most memory in bytes, of all processes together; absent for no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// The processor time, in percent of one processor; absent for no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_percent: Option<u32>,
    /// The most processes and threads at once; absent for no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<u32>,
    /// Whether the step fails on a machine that cannot enforce this. Otherwise it runs with a warning.
    pub required: bool,
}

/// The network that a step reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SandboxNetwork {
    /// None.
    #[default]
    None,
    /// Loopback addresses of its own, where nothing of the machine listens.
    Loopback,
    /// The network of the machine.
    All,
}

/// Decodes the sandbox of a step; a key of the step counts more than the same key of the pipeline. Returns `None` if the
/// step has no sandbox.
pub(crate) fn decode(step: Option<&Node>, pipeline: Option<&Node>) -> Option<SandboxSpec> {
    let is_none = |node: Option<&Node>| node.is_none_or(|node| node.text().is_some());
    if step.is_some_and(|step| step.text().is_some()) || (is_none(step) && is_none(pipeline)) {
        return None;
    }
    let pipeline = pipeline.filter(|_| step.is_none() || !mutant!(SandboxOfPipelineForgotten));
    let key = |name: &str| step.and_then(|step| step.get(name)).or_else(|| pipeline?.get(name));
    let written = key("write").map(|list| texts(Some(list)));
    let write = written.clone().unwrap_or_default().into_iter().filter(|path| path != WORKTREE);
    let number = |name: &str| key(name).and_then(Node::integer);
    Some(SandboxSpec {
        write_worktree: written.is_none_or(|paths| paths.iter().any(|path| path == WORKTREE)),
        write: write.collect(),
        read: texts(key("read")),
        network: match key("network").and_then(Node::text) {
            Some("loopback") => SandboxNetwork::Loopback,
            Some("all") => SandboxNetwork::All,
            _ => SandboxNetwork::None,
        },
        memory_bytes: key("memory").and_then(Node::text).and_then(bytes),
        cpu_percent: key("cpu").and_then(Node::number).map(|cpus| (cpus * 100.0).round().max(1.0) as u32),
        processes: number("processes").and_then(|most| u32::try_from(most).ok()),
        required: key("required").and_then(Node::boolean).unwrap_or(!mutant!(SandboxIsOptional)),
    })
}

/// Parses a size such as `512MiB`. Returns `None` for other texts, and for one that is too small or too large.
pub(crate) fn bytes(text: &str) -> Option<u64> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let (_, factor) = UNITS.into_iter().find(|(name, _)| *name == unit)?;
    let bytes = number.parse::<u64>().ok()?.checked_mul(factor)?;
    (MIN_MEMORY_BYTES..=1 << 50).contains(&bytes).then_some(bytes)
}

/// Returns whether a text is a path that a sandbox can have: absolute or below the home folder, without `..`.
pub(crate) fn is_path(text: &str) -> bool {
    let rest = text.strip_prefix("~/").or_else(|| text.strip_prefix('/'));
    rest.is_some_and(|rest| {
        !rest.is_empty() && !rest.starts_with('/') && rest.split('/').all(|part| part != "..")
    }) && !text.contains(['\0', '{'])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sandbox(file: &str) -> Option<SandboxSpec> {
        let loaded = crate::parse("p.yaml", file).unwrap_or_else(|wrong| panic!("{file}\n{wrong}"));
        loaded.pipeline.steps[0].spec.sandbox.clone()
    }

    #[test]
    fn a_steps_keys_replace_those_of_the_pipeline_one_by_one() {
        let own = sandbox(
            "sandbox: {network: all, memory: 4GiB, processes: 512}\nsteps:\n- {id: a, run: x, sandbox: {network: none, cpu: 1.5, write: [/var/cache/x]}}\n",
        );
        let expected = SandboxSpec {
            write_worktree: false,
            write: vec!["/var/cache/x".into()],
            memory_bytes: Some(4 << 30),
            cpu_percent: Some(150),
            processes: Some(512),
            required: true,
            ..SandboxSpec::default()
        };
        assert_eq!(own, Some(expected));
        let default = sandbox("sandbox: {}\nsteps: [{id: a, run: x}]\n").unwrap();
        assert!(default.write_worktree && default.required && default.network == SandboxNetwork::None);
        assert_eq!(sandbox("sandbox: {}\nsteps: [{id: a, run: x, sandbox: none}]\n"), None);
        assert_eq!(sandbox("steps: [{id: a, run: x}]\n"), None);
    }

    #[test]
    fn every_mistake_in_a_sandbox_is_refused_with_its_remedy() {
        for (sandbox, expected) in [
            ("{memory: 4}", "`memory`"),
            ("{memory: 4GB}", "`memory`"),
            ("{memory: 512KiB}", "`memory`"),
            ("{write: [src]}", "`write`"),
            ("{write: [/a/../b]}", "`write`"),
            ("{read: [worktree]}", "`read`"),
            ("{network: some}", "`network`"),
            ("{cpu: 0}", "`cpu`"),
            ("{processes: 0}", "`processes`"),
            ("{memori: 4GiB}", "`memori`"),
        ] {
            for place in [
                format!("sandbox: {sandbox}\nsteps: [{{id: a, run: x}}]\n"),
                format!("steps: [{{id: a, run: x, sandbox: {sandbox}}}]\n"),
            ] {
                let wrong = crate::parse("p.yaml", &place).map(|_| ()).unwrap_err();
                assert!(wrong.iter().next().unwrap().message.contains(expected), "{place}\n{wrong}");
            }
        }
        let gate = crate::parse("p.yaml", "steps: [{id: a, gate: {ask: x}, sandbox: {}}]\n")
            .map(|_| ())
            .unwrap_err();
        assert!(gate.to_string().contains("`sandbox` has no effect on a `gate`"), "{gate}");
    }
}
