//! A series on the page of its plan, and the form that moves its date.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use keyfall_daemon::shapes::{SeriesChangeOut, SeriesIn, SeriesOut, SeriesPreviewIn};

use crate::api::Call;
use crate::cx::Cx;
use crate::fault::Fault;

/// Another date of a series, which waits for a confirmation, with what would become of its members.
pub(crate) struct Proposed {
    pub(crate) anchor: String,
    pub(crate) change: SeriesChangeOut,
}

/// The date of a series as a person writes it: on the wall of the zone of the series; in UTC if this
/// machine does not know the zone.
pub(crate) fn written(series: &SeriesOut) -> String {
    let Ok(at) = Timestamp::try_from(series.anchor.0) else {
        return String::new();
    };
    match TimeZone::get(&series.zone) {
        Ok(zone) => at.to_zoned(zone).strftime("%Y-%m-%d %H:%M:%S").to_string(),
        Err(_) => at.to_string(),
    }
}

/// The body of the calls that move a series to this date.
///
/// # Errors
/// If the date is missing.
pub(crate) fn moved(anchor: &str) -> Result<SeriesIn, Fault> {
    let anchor = anchor.trim();
    if anchor.is_empty() {
        return Err(Fault::invalid("anchor", "fault.no_date", &[]));
    }
    Ok(SeriesIn {
        anchor: Some(anchor.to_owned()),
        ..SeriesIn::default()
    })
}

impl Proposed {
    /// Asks what a move to this date would do.
    ///
    /// # Errors
    /// If the date is no date, or the API refuses the call.
    pub(crate) async fn ask(cx: &Cx, key: &str, anchor: &str) -> Result<Self, Fault> {
        let wanted = SeriesPreviewIn {
            key: key.to_owned(),
            series: moved(anchor)?,
        };
        let call = Call::post(&["series", "preview"]).with(&wanted);
        Ok(Proposed {
            anchor: anchor.trim().to_owned(),
            change: cx.caller.ask(call).await?,
        })
    }
}
