//! Small charts as SVG, so that a browser shows them without JavaScript. Their numbers stand beside them as text.

use std::fmt::Write as _;

/// The width of a chart in its own units. A browser stretches it.
pub(crate) const WIDTH: u64 = 1_000;
/// The narrowest bar that can be seen.
const NARROW: u64 = 4;

/// Returns a part of `WIDTH`.
pub(crate) fn part(value: u64, of: u64) -> u64 {
    let part = u128::from(value) * u128::from(WIDTH) / u128::from(of.max(1));
    u64::try_from(part).unwrap_or(WIDTH).min(WIDTH)
}

/// The outline of bars of one kind, for one element of the document.
#[derive(Default)]
pub(crate) struct Bars(String);

impl Bars {
    /// Adds a bar from `begin` to `end`. It is at least wide enough to be seen.
    pub(crate) fn add(&mut self, begin: u64, end: u64, top: usize, height: usize) {
        let width = end.saturating_sub(begin).max(NARROW);
        let begin = begin.min(WIDTH - NARROW.min(WIDTH));
        let _ = write!(self.0, "M{begin} {top}h{width}v{height}h-{width}z");
    }

    /// Returns the bars as an element of this class, or nothing.
    pub(crate) fn path(&self, class: &str) -> String {
        match self.0.is_empty() {
            true => String::new(),
            false => format!("<path class=\"{class}\" d=\"{}\"/>", self.0),
        }
    }
}

/// Returns a drawing that is stretched to the width of its place.
pub(crate) fn drawing(class: &str, height: usize, shapes: &str) -> String {
    format!(
        "<svg class=\"{class}\" viewBox=\"0 0 {WIDTH} {height}\" preserveAspectRatio=\"none\" aria-hidden=\"true\">{shapes}</svg>"
    )
}

/// Returns a bar of this length.
pub(crate) fn bar(class: &str, value: u64, of: u64) -> String {
    let mut bars = Bars::default();
    if value > 0 {
        bars.add(0, part(value, of), 0, 10);
    }
    drawing("bar", 10, &bars.path(class))
}

/// Returns a column for each value, the oldest first. A value that is not known has none.
pub(crate) fn columns(class: &str, values: &[Option<u32>]) -> String {
    let most = values.iter().flatten().copied().max().unwrap_or(0).max(1);
    let mut columns = String::new();
    for (at, value) in values.iter().enumerate() {
        if let Some(value) = value.filter(|value| *value > 0) {
            let height = (u64::from(value) * 20).div_ceil(u64::from(most));
            let _ = write!(columns, "M{} 20v-{height}h3v{height}z", at * 4);
        }
    }
    let (width, known) = (values.len() * 4, values.iter().position(Option::is_some));
    let ground = known.map_or(width, |first| first * 4);
    format!(
        "<svg class=\"spark\" viewBox=\"0 0 {width} 21\" preserveAspectRatio=\"none\" aria-hidden=\"true\"><path class=\"ground\" \
         d=\"M{ground} 20h{}v1H{ground}z\"/><path class=\"{class}\" d=\"{columns}\"/></svg>",
        width - ground
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_short_can_be_seen_and_what_is_not_known_is_not_drawn() {
        let mut bars = Bars::default();
        bars.add(WIDTH, WIDTH, 0, 10);
        assert_eq!(bars.path("released"), "<path class=\"released\" d=\"M996 0h4v10h-4z\"/>");
        assert_eq!(Bars::default().path("lost"), "");
        assert_eq!([part(1, 2), part(9, 3), part(1, 0)], [500, WIDTH, WIDTH]);
        let drawn = columns("grants", &[None, None, Some(0), Some(1), Some(1_000)]);
        assert!(
            drawn.contains("d=\"M8 20h12v1H8z\"") && drawn.contains("d=\"M12 20v-1h3v1zM16 20v-20h3v20z\""),
            "{drawn}"
        );
    }
}
