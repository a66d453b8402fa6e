//! Versions in the form in which programs print them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A version of three numbers. A suffix such as `-beta.1` is ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Version {
    /// The number before the first dot.
    pub major: u32,
    /// The number after the first dot.
    pub minor: u32,
    /// The number after the second dot; 0 if the program prints none.
    pub patch: u32,
}

impl Version {
    /// Returns the version with these numbers.
    pub const fn new(major: u32, minor: u32, patch: u32) -> Version {
        Version { major, minor, patch }
    }

    /// Finds the first version in a program's output: `2.1.325 (Claude Code)`, `codex-cli 0.166.0`, `v1.2`.
    pub fn find(output: &str) -> Option<Version> {
        output.split(|c: char| c.is_whitespace() || "(),".contains(c)).find_map(|word| {
            let word = word.trim_start_matches('v');
            let mut numbers = word.split('.').map(|part| {
                let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
                part[..digits].parse::<u32>().ok()
            });
            let version =
                Version::new(numbers.next()??, numbers.next()??, numbers.next().flatten().unwrap_or(0));
            Some(version)
        })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_real_programs_print() {
        let rows = [
            ("2.1.325 (Claude Code)\n", Some(Version::new(2, 1, 325))),
            ("WARNING: proceeding\ncodex-cli 0.166.0\n", Some(Version::new(0, 166, 0))),
            ("0.61.0", Some(Version::new(0, 61, 0))),
            ("v1.2.3-beta.1", Some(Version::new(1, 2, 3))),
            ("opencode 1.18", Some(Version::new(1, 18, 0))),
            ("no version here", None),
            ("5", None),
        ];
        for (output, version) in rows {
            assert_eq!(Version::find(output), version, "{output}");
        }
        assert!(Version::new(2, 1, 325) > Version::new(2, 1, 40));
        assert_eq!(Version::new(1, 2, 3).to_string(), "1.2.3");
    }
}
