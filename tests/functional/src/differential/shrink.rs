//! Making plans small.

use super::plan::Plan;

/// The smallest plan that was found for which `shows` is true, as it is for `plan`. It is asked at most `tries` times.
pub fn shrink(plan: &Plan, mut tries: u32, mut shows: impl FnMut(&Plan) -> bool) -> Plan {
    let mut small = plan.clone();
    loop {
        let before = small.clone();
        for candidates in [without_groups, without_steps, with_simpler_steps] {
            let mut at = 0;
            while let Some(candidate) = candidates(&small, at) {
                if tries == 0 {
                    return small;
                }
                if candidate == small {
                    at += 1;
                    continue;
                }
                tries -= 1;
                if shows(&candidate) {
                    small = candidate;
                } else {
                    at += 1;
                }
            }
        }
        if small == before {
            return small;
        }
    }
}

/// Candidate `at` of those that have fewer groups: halves, quarters, and so on to single ones, the last first.
fn without_groups(plan: &Plan, at: usize) -> Option<Plan> {
    let len = plan.groups.len();
    let mut size = len / 2;
    let mut at = at;
    while size > 0 {
        let pieces = len.div_ceil(size);
        if at < pieces {
            let from = (pieces - 1 - at) * size;
            let mut less = plan.clone();
            less.groups.drain(from..len.min(from + size));
            return Some(less);
        }
        at -= pieces;
        size /= 2;
    }
    None
}

/// Those of which a group has fewer steps, or of which a process has fewer threads.
fn without_steps(plan: &Plan, at: usize) -> Option<Plan> {
    let places = plan.groups.iter().enumerate().filter(|(_, group)| group.len() > 1);
    let mut places = places.flat_map(|(n, group)| (0..group.len()).map(move |m| (n, m)));
    let mut less = plan.clone();
    if let Some((n, m)) = places.nth(at) {
        less.groups[n].remove(m);
        return Some(less);
    }
    let many: usize = plan.groups.iter().filter(|group| group.len() > 1).map(Vec::len).sum();
    let process = at.checked_sub(many)?;
    let threads = less.processes.get_mut(process)?;
    let used = |step: &super::plan::Step| {
        usize::from(step.actor.process) == process && step.actor.thread + 1 == *threads
    };
    if *threads > 1 && !plan.steps().any(used) {
        *threads -= 1;
    }
    Some(less)
}

/// Those of which a step is simpler.
fn with_simpler_steps(plan: &Plan, at: usize) -> Option<Plan> {
    let mut at = at;
    for (n, group) in plan.groups.iter().enumerate() {
        for (m, step) in group.iter().enumerate() {
            let simpler = step.op.simpler();
            if let Some(op) = simpler.get(at) {
                let mut other = plan.clone();
                other.groups[n][m].op = op.clone();
                return Some(other);
            }
            at -= simpler.len();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::differential::plan::Op;

    #[test]
    fn what_does_not_matter_goes() {
        let plan: Plan = "\
p0: 2
p1: 1
p0.0 listen(l0, 0)
p1.0 connect(a0, l0, 0)
p0.0 accept(b0, l0)
p1.0 ping(a0, 4) | p0.0 pong(b0, 4)
p0.1 recv(b0, 3200, WAITALL|PEEK, recvmsg)
p0.0 close(b0)
"
        .parse()
        .unwrap();
        let shows = |plan: &Plan| {
            let mut ops = plan.steps().map(|step| &step.op);
            ops.any(|op| matches!(op, Op::Recv { .. }))
                && ops.any(|op| matches!(op, Op::Close { .. }))
        };
        let small = shrink(&plan, 1000, shows);
        assert_eq!(
            small.to_string(),
            "p0: 2\np1: 1\np0.1 recv(b0, 1, 0, recv)\np0.0 close(b0, close)\n"
        );
    }
}
