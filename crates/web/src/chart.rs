//! Charts: bars as SVG, drawn here, so that they need no script.

/// The height of a chart in its own units; its width is the number of bars.
pub(crate) const HEIGHT: f64 = 100.0;

/// The least height of a bar that stands for something.
const LEAST: f64 = 2.5;

/// A bar.
#[derive(Debug, PartialEq)]
pub(crate) struct Bar {
    /// The left side, in bars.
    pub(crate) x: usize,
    pub(crate) y: f64,
    pub(crate) height: f64,
    pub(crate) value: u64,
}

/// The bars of these values. The highest one fills the chart.
pub(crate) fn bars(values: &[u64]) -> Vec<Bar> {
    let most = values.iter().copied().max().unwrap_or(0).max(1);
    let bar = |(x, &value): (usize, &u64)| {
        #[expect(clippy::cast_precision_loss, reason = "a bar is some pixels high")]
        let height = value as f64 / most as f64 * HEIGHT;
        let height = match value {
            0 => 0.0,
            _ => height.max(LEAST),
        };
        Bar {
            x,
            y: HEIGHT - height,
            height,
            value,
        }
    };
    values.iter().enumerate().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_job_among_millions_is_seen() {
        let bars = bars(&[0, 1, 5_000_000]);
        assert_eq!(bars[0].height, 0.0);
        assert_eq!(bars[1].height, LEAST);
        assert_eq!((bars[2].y, bars[2].height), (0.0, HEIGHT));
        assert_eq!(super::bars(&[0, 0])[1].height, 0.0);
    }
}
