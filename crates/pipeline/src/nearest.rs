//! Finds the valid name that is most similar to an invalid one.

/// Longer names are not compared, because they are not the result of a typing error.
const MAX_CHARS: usize = 64;

/// Returns the candidate that is most similar to `given`, if one is similar enough.
pub(crate) fn nearest<'a>(given: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wanted: Vec<char> = given.chars().flat_map(char::to_lowercase).take(MAX_CHARS + 1).collect();
    if wanted.is_empty() || wanted.len() > MAX_CHARS {
        return None;
    }
    // One typing error in three characters is tolerated.
    let tolerated = (wanted.len() / 3).max(1);
    let near = candidates.into_iter().filter_map(|candidate| {
        let letters: Vec<char> = candidate.chars().flat_map(char::to_lowercase).take(MAX_CHARS + 1).collect();
        if letters.len().abs_diff(wanted.len()) > tolerated {
            return None;
        }
        let distance = distance(&wanted, &letters);
        (distance <= tolerated).then_some((distance, candidate))
    });
    near.min_by_key(|(distance, _)| *distance).map(|(_, candidate)| candidate)
}

/// Returns the number of insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut row = Vec::with_capacity(b.len() + 1);
        row.push(i + 1);
        for (j, y) in b.iter().enumerate() {
            let mut best = (above[j] + usize::from(x != y)).min(above[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *x == b[j - 1] && a[i - 1] == *y {
                best = best.min(before[j - 1] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typing_errors_find_their_name() {
        let keys = ["needs", "retry", "timeout", "run", "env", "id"];
        for (given, meant) in [
            ("need", Some("needs")),
            ("rerty", Some("retry")),
            ("timeuot", Some("timeout")),
            ("Run", Some("run")),
            ("rn", Some("run")),
            ("environment", None),
            ("xyz", None),
            ("", None),
        ] {
            assert_eq!(nearest(given, keys), meant, "{given}");
        }
    }
}
