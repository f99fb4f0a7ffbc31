//! The rule of a recurring job, in the language of the reader. The API says it in English; for other
//! languages its parts are put together here.

use croner::describe::Language;
use croner::parser::CronParser;
use keyfall_daemon::shapes::PreviewOut;
use serde_json::Value;

use crate::words::Words;

/// The rule in words. A language without words for rules shows those of the API.
pub(crate) fn said(words: &'static Words, preview: &PreviewOut) -> String {
    if words.find("said-rule.every").is_none() {
        return preview.words.clone();
    }
    let table = &preview.rule;
    let text = |name: &str| table[name].as_str();
    let mut parts = Vec::new();
    if let Some(expression) = text("cron") {
        parts.push(cron(words, expression));
        let zone = text("zone").unwrap_or("UTC");
        parts.push(words.fill("said-rule.zone", &[&zone]));
    } else {
        parts.extend(text("every").map(|it| words.fill("said-rule.every", &[&it])));
        parts.extend(text("after_end").map(|it| words.fill("said-rule.after_end", &[&it])));
        parts.extend(text("zone").map(|it| words.fill("said-rule.zone", &[&it])));
    }
    parts.extend(text("from").map(|it| words.fill("said-rule.from", &[&it])));
    parts.extend(text("until").map(|it| words.fill("said-rule.until", &[&it])));
    let runs = table["runs"].as_u64();
    parts.extend(runs.map(|runs| words.fill("said-rule.runs", &[&runs])));
    parts.extend(text("jitter").map(|it| words.fill("said-rule.jitter", &[&it])));
    parts.extend(match text("busy") {
        Some("queue one") => Some(words.t("said-rule.queue_one").to_owned()),
        Some("replace") => Some(words.t("said-rule.replace").to_owned()),
        _ => None,
    });
    parts.extend(text("missed").map(|missed| match missed.split_once(' ') {
        Some(("all", most)) => words.fill("said-rule.missed_all", &[&most]),
        Some((_, time)) => words.fill("said-rule.missed_spread", &[&time]),
        None => words.t("said-rule.missed_skip").to_owned(),
    }));
    parts.extend(match &table["quiet"] {
        Value::Null => None,
        Value::String(hours) => Some(words.fill("said-rule.quiet", &[hours])),
        quiet => Some(words.fill("said-rule.quiet", &[quiet])),
    });
    parts.join(words.t("said-rule.comma"))
}

/// A cron expression in words; one that croner does not know stays as it is.
fn cron(words: &'static Words, expression: &str) -> String {
    let Ok(cron) = CronParser::new().parse(expression) else {
        return expression.to_owned();
    };
    let spoken = Spoken {
        words,
        // croner 4.0.3 says the same of `L` and `LW`.
        is_weekday: expression.to_ascii_uppercase().contains("LW"),
    };
    let said = cron.describe_lang(spoken);
    let said = said.trim_end_matches('.');
    let and = words.t("said-cron.and");
    // The punctuation of croner is English.
    said.replace(&format!(", {and} "), and)
        .replace(&format!(" {and} "), and)
        .replace(", ", words.t("said-rule.comma"))
}

/// The words for parts of an expression.
struct Spoken {
    words: &'static Words,
    is_weekday: bool,
}

impl Language for Spoken {
    fn every_minute(&self) -> &'static str {
        self.words.t("said-cron.minute")
    }
    fn every_second_phrase(&self) -> &'static str {
        self.words.t("said-cron.second")
    }
    fn every_x_minutes(&self, step: u16) -> String {
        self.words.fill("said-cron.minutes", &[&step])
    }
    fn every_x_seconds(&self, step: u16) -> String {
        self.words.fill("said-cron.seconds", &[&step])
    }
    fn every_x_hours(&self, step: u16) -> String {
        self.words.fill("said-cron.hours", &[&step])
    }
    fn every_minute_of_every_x_hours(&self, step: u16) -> String {
        let hours = self.every_x_hours(step);
        self.every_past_phrase(self.every_minute(), &hours)
    }
    fn at_time(&self, time: &str) -> String {
        time.to_owned()
    }
    fn at_time_and_every_x_seconds(&self, time: &str, step: u16) -> String {
        format!("{time}, {}", self.every_x_seconds(step))
    }
    fn at_time_at_second(&self, time: &str, second: &str) -> String {
        format!("{time}, {}", self.second_phrase(second))
    }
    fn at_phrase(&self, phrase: &str) -> String {
        phrase.to_owned()
    }
    fn on_phrase(&self, phrase: &str) -> String {
        phrase.to_owned()
    }
    fn in_phrase(&self, phrase: &str) -> String {
        phrase.to_owned()
    }
    fn second_phrase(&self, s: &str) -> String {
        self.words.fill("said-cron.at_second", &[&s])
    }
    fn minute_phrase(&self, s: &str) -> String {
        self.words.fill("said-cron.at_minute", &[&s])
    }
    fn minute_past_every_hour_phrase(&self, s: &str) -> String {
        self.words.fill("said-cron.each_hour", &[&s])
    }
    fn hour_phrase(&self, s: &str) -> String {
        self.words.fill("said-cron.in_hour", &[&s])
    }
    fn past_hour_phrase(&self, s: &str) -> String {
        self.hour_phrase(s)
    }
    fn every_past_phrase(&self, every: &str, hours: &str) -> String {
        format!("{hours}, {every}")
    }
    fn year_phrase(&self, s: &str) -> String {
        self.words.fill("said-cron.year", &[&s])
    }
    fn every_x_months(&self, step: u16) -> String {
        self.words.fill("said-cron.months", &[&step])
    }
    fn every_x_years(&self, step: u16) -> String {
        self.words.fill("said-cron.years", &[&step])
    }
    fn day_phrase(&self, s: &str) -> String {
        self.words.fill("said-cron.day", &[&s])
    }
    fn the_last_day_of_the_month(&self) -> &'static str {
        match self.is_weekday {
            true => self.words.t("said-cron.last_weekday"),
            false => self.words.t("said-cron.last_day"),
        }
    }
    fn the_weekday_nearest_day(&self, day: &str) -> String {
        self.words.fill("said-cron.nearest", &[&day])
    }
    fn the_last_weekday_of_the_month(&self, day: &str) -> String {
        self.words.fill("said-cron.last_of_month", &[&day])
    }
    fn the_nth_weekday_of_the_month(&self, n: u8, day: &str) -> String {
        self.words.fill("said-cron.nth_of_month", &[&n, &day])
    }
    fn dom_and_dow_if_also(&self, dow: &str) -> String {
        self.words.fill("said-cron.if_also", &[&dow])
    }
    fn dom_and_dow_if_also_one_of(&self, dow: &str) -> String {
        self.dom_and_dow_if_also(dow)
    }
    fn list_conjunction_and(&self) -> &'static str {
        self.words.t("said-cron.and")
    }
    fn list_conjunction_or(&self) -> &'static str {
        self.words.t("said-cron.or")
    }
    fn list_conjunction_and_comma(&self) -> &'static str {
        self.words.t("said-cron.and")
    }
    fn day_of_week_names(&self) -> [&'static str; 7] {
        let names = [
            "said-cron.sun",
            "said-cron.mon",
            "said-cron.tue",
            "said-cron.wed",
            "said-cron.thu",
            "said-cron.fri",
            "said-cron.sat",
        ];
        names.map(|name| self.words.t(name))
    }
    fn month_names(&self) -> [&'static str; 12] {
        let names = [
            "said-cron.jan",
            "said-cron.feb",
            "said-cron.mar",
            "said-cron.apr",
            "said-cron.may",
            "said-cron.jun",
            "said-cron.jul",
            "said-cron.aug",
            "said-cron.sep",
            "said-cron.oct",
            "said-cron.nov",
            "said-cron.dec",
        ];
        names.map(|name| self.words.t(name))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::words::languages;

    fn words(lang: &str, rule: Value) -> String {
        let words = languages().iter().find(|words| words.lang == lang);
        said(words.unwrap(), &PreviewOut::of_table(&rule).unwrap())
    }

    #[test]
    fn a_rule_is_said_in_the_language_of_the_reader() {
        let rule = json!({"cron": "0 9 * * MON-FRI", "zone": "Europe/Berlin", "missed": "all 3"});
        let english = words("en", rule.clone());
        assert!(
            english.contains("Monday") && english.contains("in Europe/Berlin"),
            "{english}"
        );
        assert_eq!(
            words("zh", rule),
            "09:00，周一，周二，周三，周四和周五，时区 Europe/Berlin，最多补运行 3 个错过的时间"
        );
        for (rule, chinese) in [
            (json!({"every": "90m", "runs": 3}), "每隔 1h30m，共 3 次"),
            (json!({"after_end": "10m"}), "每次运行结束后 10m"),
            (json!({"cron": "*/5 * * * *"}), "每 5 分钟，时区 UTC"),
            (
                json!({"cron": "0 0 LW * *"}),
                "00:00，当月最后一个工作日，时区 UTC",
            ),
            (
                json!({"cron": "0 12 1,15 1 *"}),
                "12:00，1和15 日，一月，时区 UTC",
            ),
        ] {
            assert_eq!(words("zh", rule), chinese);
        }
    }
}
