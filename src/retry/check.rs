//! The rules that a retry policy must keep.

use std::time::Duration;

use super::{MAX_DELAY, MAX_RUNGS, Shape};

impl Shape {
    /// Checks the shape.
    ///
    /// # Errors
    /// A sentence that names the part, the rule and the remedy.
    pub(super) fn check(&self) -> Result<(), String> {
        match self {
            Shape::Ladder(rungs) => check_rungs(rungs),
            Shape::Exponential { base, cap } => {
                check_growth("exponential", "base", *base)?;
                check_cap("base", *base, *cap)
            }
            Shape::Linear { step, cap } => {
                check_growth("linear", "step", *step)?;
                cap.map_or(Ok(()), |cap| check_cap("step", *step, cap))
            }
            Shape::Fixed(delay) => check_delay("the fixed delay", *delay),
            Shape::None => Ok(()),
        }
    }
}

/// A ladder has 1 to [`MAX_RUNGS`] rungs of at most ten years.
fn check_rungs(rungs: &[Duration]) -> Result<(), String> {
    if rungs.is_empty() {
        return Err("the ladder has no rung: add at least one, or use the policy `none`".into());
    }
    if rungs.len() > MAX_RUNGS {
        return Err(format!(
            "the ladder has more than {MAX_RUNGS} rungs: use `exponential`, `linear` or `fixed` \
             with a limit of attempts"
        ));
    }
    for (number, rung) in (1..).zip(rungs) {
        check_delay(&format!("rung {number} of the ladder"), *rung)?;
    }
    Ok(())
}

/// A delay that grows starts above zero.
fn check_growth(shape: &str, part: &str, delay: Duration) -> Result<(), String> {
    if delay.is_zero() {
        return Err(format!(
            "the {part} of the {shape} policy is zero, so the delay would never grow: make it \
             longer, or use `fixed`"
        ));
    }
    check_delay(&format!("the {part} of the {shape} policy"), delay)
}

/// A cap is not shorter than the first delay.
fn check_cap(part: &str, first: Duration, cap: Duration) -> Result<(), String> {
    if cap < first {
        return Err(format!(
            "the cap of the policy, {cap:?}, is shorter than its {part}, {first:?}: \
             raise the cap, or shorten the {part}"
        ));
    }
    check_delay("the cap of the policy", cap)
}

/// A delay is at most ten years.
fn check_delay(part: &str, delay: Duration) -> Result<(), String> {
    if delay > MAX_DELAY {
        return Err(format!(
            "{part} is {} s, and a delay is at most ten years ({} s): shorten it",
            delay.as_secs(),
            MAX_DELAY.as_secs()
        ));
    }
    Ok(())
}
