//! Queries on steps and their needs: cycles, and which steps come before others.
//!
//! A graph is a list of needs, one entry per step. No function recurses, because a chain of needs may be longer
//! than the stack allows.

use crate::StepNo;

/// Returns a cycle, or `None`. Each step of it needs the next one; the first step is repeated at the end.
pub fn find_cycle<N: AsRef<[StepNo]>>(needs: &[N]) -> Option<Vec<StepNo>> {
    #[derive(Clone, Copy, PartialEq)]
    enum Mark {
        New,
        OnPath,
        Clear,
    }
    let mut marks = vec![Mark::New; needs.len()];
    // The steps of the path, each with the index of the need to visit next.
    let mut path: Vec<(usize, usize)> = Vec::new();
    for root in 0..needs.len() {
        if marks[root] == Mark::New {
            marks[root] = Mark::OnPath;
            path.push((root, 0));
        }
        while let Some((at, next)) = path.last_mut() {
            let Some(need) = needs[*at].as_ref().get(*next).map(|need| *need as usize) else {
                marks[*at] = Mark::Clear;
                path.pop();
                continue;
            };
            *next += 1;
            match marks[need] {
                Mark::Clear => {}
                Mark::New => {
                    marks[need] = Mark::OnPath;
                    path.push((need, 0));
                }
                Mark::OnPath => {
                    let steps = path.iter().map(|(step, _)| *step).skip_while(|step| *step != need);
                    return Some(steps.chain([need]).map(|step| step as StepNo).collect());
                }
            }
        }
    }
    None
}

/// Returns for each pair `(earlier, later)` whether the later step needs the earlier one, directly or through
/// others. The graph must have no cycle.
///
/// Each pass over the graph follows 64 earlier steps, one bit each, so a thousand pairs cost sixteen passes.
pub fn come_before<N: AsRef<[StepNo]>>(needs: &[N], pairs: &[(StepNo, StepNo)]) -> Vec<bool> {
    let order = order(needs);
    let mut earlier: Vec<StepNo> = pairs.iter().map(|(earlier, _)| *earlier).collect();
    earlier.sort_unstable();
    earlier.dedup();
    let mut asked: Vec<(usize, usize)> = pairs
        .iter()
        .enumerate()
        .map(|(at, (step, _))| (earlier.binary_search(step).unwrap_or_default(), at))
        .collect();
    asked.sort_unstable();
    let mut answers = vec![false; pairs.len()];
    let mut asked = asked.into_iter().peekable();
    for (block, steps) in earlier.chunks(64).enumerate() {
        // For each step, the steps of the block that come before it.
        let mut before = vec![0u64; needs.len()];
        let bit = |step: StepNo| steps.binary_search(&step).map_or(0, |at| 1u64 << at);
        for step in &order {
            let met =
                needs[*step].as_ref().iter().fold(0, |met, need| met | before[*need as usize] | bit(*need));
            before[*step] = met;
        }
        while let Some((rank, at)) = asked.next_if(|(rank, _)| *rank / 64 == block) {
            answers[at] = before[pairs[at].1 as usize] & (1 << (rank % 64)) != 0;
        }
    }
    answers
}

/// Returns the steps in topological order: each after all its needs.
fn order<N: AsRef<[StepNo]>>(needs: &[N]) -> Vec<usize> {
    let mut open: Vec<usize> = needs.iter().map(|needs| needs.as_ref().len()).collect();
    let mut followers: Vec<Vec<usize>> = vec![Vec::new(); needs.len()];
    for (step, needs) in needs.iter().enumerate() {
        needs.as_ref().iter().for_each(|need| followers[*need as usize].push(step));
    }
    let mut order: Vec<usize> = (0..needs.len()).filter(|step| open[*step] == 0).collect();
    let mut at = 0;
    while let Some(step) = order.get(at).copied() {
        at += 1;
        for follower in &followers[step] {
            open[*follower] -= 1;
            if open[*follower] == 0 {
                order.push(*follower);
            }
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers the same question by a plain search.
    fn comes_before(needs: &[Vec<StepNo>], earlier: StepNo, later: StepNo) -> bool {
        needs[later as usize].iter().any(|need| *need == earlier || comes_before(needs, earlier, *need))
    }

    #[test]
    fn the_order_of_steps_equals_a_plain_search() {
        let mut chance = 0x2545_f491_4f6c_dd1d_u64;
        let mut below = |bound: usize| {
            chance ^= chance << 13;
            chance ^= chance >> 7;
            chance ^= chance << 17;
            (chance % bound as u64) as usize
        };
        for count in [1, 2, 7, 63, 64, 65, 150] {
            // Needs point back in a random order of the steps, not in the order of their numbers.
            let mut place: Vec<usize> = (0..count).collect();
            (1..count).rev().for_each(|at| place.swap(at, below(at + 1)));
            let mut needs: Vec<Vec<StepNo>> = vec![Vec::new(); count];
            for at in 1..count {
                needs[place[at]] = (0..below(3)).map(|_| place[below(at)] as StepNo).collect();
            }
            assert_eq!(find_cycle(&needs), None);
            let pairs: Vec<(StepNo, StepNo)> =
                (0..500).map(|_| (below(count) as StepNo, below(count) as StepNo)).collect();
            let expected: Vec<bool> = pairs.iter().map(|(a, b)| comes_before(&needs, *a, *b)).collect();
            assert_eq!(come_before(&needs, &pairs), expected);
        }
        assert!(come_before::<Vec<StepNo>>(&[], &[]).is_empty());
    }

    #[test]
    fn a_cycle_is_found_anywhere() {
        assert_eq!(find_cycle(&[vec![2], vec![0], vec![1]]), Some(vec![0, 2, 1, 0]));
        assert_eq!(find_cycle(&[vec![], vec![0, 1]]), Some(vec![1, 1]));
        assert_eq!(find_cycle(&[vec![], vec![0], vec![0, 1]]), None);
    }
}
