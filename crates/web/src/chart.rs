//! Charts: bars as SVG, drawn here, so that they need no script.

/// The height of a chart in its own units; its width is the number of bars.
pub(crate) const HEIGHT: f64 = 100.0;

/// The least height of a bar that stands for something.
const LEAST: f64 = 2.5;

/// A bar of one or several parts, the first one at the bottom.
#[derive(Debug, PartialEq)]
pub(crate) struct Stack {
    /// The left side, in bars.
    pub(crate) x: usize,
    pub(crate) parts: Vec<Part>,
    /// The sum of the parts.
    pub(crate) value: u64,
}

#[derive(Debug, PartialEq)]
pub(crate) struct Part {
    /// The number of its series.
    pub(crate) series: usize,
    pub(crate) y: f64,
    pub(crate) height: f64,
}

/// The bars of these series, which have equally many values. The highest bar fills the chart; parts
/// that stand for nothing are left out.
pub(crate) fn stacks(series: &[&Vec<u64>]) -> Vec<Stack> {
    let count = series.iter().map(|values| values.len()).min().unwrap_or(0);
    let sum = |at: usize| series.iter().map(|values| values[at]).sum();
    let sums: Vec<u64> = (0..count).map(sum).collect();
    let most = sums.iter().copied().max().unwrap_or(0).max(1);
    let stack = |(x, value): (usize, u64)| {
        let mut y = HEIGHT;
        let parts = series.iter().enumerate().filter_map(|(number, values)| {
            let height = height(values[x], most)?;
            y = (y - height).max(0.0);
            Some(Part {
                series: number,
                y,
                height,
            })
        });
        Stack {
            x,
            parts: parts.collect(),
            value,
        }
    };
    sums.into_iter().enumerate().map(stack).collect()
}

fn height(value: u64, most: u64) -> Option<f64> {
    #[expect(clippy::cast_precision_loss, reason = "a bar is some pixels high")]
    let height = value as f64 / most as f64 * HEIGHT;
    // Tenths are enough, and short.
    (value > 0).then(|| (height.max(LEAST) * 10.0).round() / 10.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_job_among_millions_is_seen() {
        let bars = stacks(&[&vec![0, 1, 5_000_000]]);
        assert_eq!(bars[0].parts, []);
        assert_eq!(bars[1].parts[0].height, LEAST);
        assert_eq!((bars[2].parts[0].y, bars[2].parts[0].height), (0.0, HEIGHT));
        assert_eq!(stacks(&[&vec![0, 0]])[1].parts, []);
    }

    #[test]
    fn parts_stand_on_each_other() {
        let bars = stacks(&[&vec![5], &vec![0], &vec![5]]);
        let parts: Vec<_> = bars[0].parts.iter().map(|it| (it.series, it.y)).collect();
        assert_eq!(parts, [(0, 50.0), (2, 0.0)]);
        assert_eq!(bars[0].value, 10);
    }
}
