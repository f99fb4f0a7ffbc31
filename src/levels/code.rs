//! A file of Rust without comments, texts and tests, and the names that it uses.

/// The code of a file. Whatever is left out is blank, so that lines keep their numbers.
pub(super) struct Code {
    code: Vec<char>,
    tests: Vec<String>,
}

/// A name of the root of the crate that stands in a line.
pub(super) struct Used {
    pub(super) line: usize,
    pub(super) name: String,
}

impl Code {
    pub(super) fn new(text: &str) -> Self {
        let mut code = without_texts(text);
        let tests = take_tests(&mut code);
        Code { code, tests }
    }

    /// The modules of tests that are declared here.
    pub(super) fn tests(&self) -> &[String] {
        &self.tests
    }

    /// The modules that are declared here, tests left out.
    pub(super) fn modules(&self) -> Vec<String> {
        let declared = |at: &usize| word(&self.code, *at) == "mod";
        let names = self.words().filter(declared);
        names
            .map(|at| word(&self.code, blank(&self.code, at + 3)))
            .collect()
    }

    /// The names that are re-exported here, each with the module that it comes from.
    pub(super) fn exports(&self) -> Vec<(String, String)> {
        let mut exports = Vec::new();
        for at in self.words().filter(|at| word(&self.code, *at) == "use") {
            let from = blank(&self.code, at + 3);
            let module = word(&self.code, from);
            let end = from
                + self.code[from..]
                    .iter()
                    .take_while(|it| **it != ';')
                    .count();
            let text: String = self.code[from + module.len()..end].iter().collect();
            for item in text.split([',', '{', '}']) {
                // Of `x as y`, the root has `y`.
                let name = item.split([' ', ':', '\n']).rfind(|it| !it.is_empty());
                exports.extend(name.map(|name| (name.to_owned(), module.clone())));
            }
        }
        exports
    }

    /// The names of the root that are used in this file, whose module is so deep below the root.
    pub(super) fn uses(&self, depth: usize) -> Vec<Used> {
        let mut uses = Vec::new();
        for start in self.words() {
            let Some(at) = self.behind_root(start, depth) else {
                continue;
            };
            let mut starts = vec![at];
            if self.code.get(at) == Some(&'{') {
                starts = self.items_of_group(at);
            }
            for at in starts {
                let line = 1 + self.code[..at].iter().filter(|it| **it == '\n').count();
                let name = word(&self.code, at);
                // Nothing is called `*`, and so it is found not to be known.
                let name = if name.is_empty() {
                    "*".to_owned()
                } else {
                    name
                };
                uses.push(Used { line, name });
            }
        }
        uses
    }

    /// Where words begin.
    fn words(&self) -> impl Iterator<Item = usize> {
        (0..self.code.len()).filter(|at| {
            is_of_word(self.code[*at]) && (*at == 0 || !is_of_word(self.code[*at - 1]))
        })
    }

    /// Where the path goes on that leads to the root from here, by `crate::` or `super::`.
    fn behind_root(&self, start: usize, depth: usize) -> Option<usize> {
        if word(&self.code, start) == "crate" {
            return self.behind_colons(start + 5);
        }
        let mut at = start;
        for _ in 0..depth {
            if word(&self.code, at) != "super" {
                return None;
            }
            at = self.behind_colons(at + 5)?;
        }
        Some(at)
    }

    fn behind_colons(&self, at: usize) -> Option<usize> {
        let at = blank(&self.code, at);
        self.code[at..]
            .starts_with(&[':', ':'])
            .then(|| blank(&self.code, at + 2))
    }

    /// Where the items of a group begin, of which this is the brace.
    fn items_of_group(&self, brace: usize) -> Vec<usize> {
        let mut items = vec![blank(&self.code, brace + 1)];
        let mut depth = 0;
        for (at, it) in self.code.iter().enumerate().skip(brace) {
            match it {
                '{' => depth += 1,
                '}' if depth == 1 => break,
                '}' => depth -= 1,
                ',' if depth == 1 => items.push(blank(&self.code, at + 1)),
                _ => {}
            }
        }
        // Behind the last comma there may be nothing.
        items.retain(|at| self.code[*at] != '}');
        items
    }
}

fn is_of_word(it: char) -> bool {
    it.is_alphanumeric() || it == '_'
}

/// The word that begins here.
fn word(code: &[char], at: usize) -> String {
    code[at..]
        .iter()
        .copied()
        .take_while(|it| is_of_word(*it))
        .collect()
}

/// The first place from here that is not blank.
fn blank(code: &[char], at: usize) -> usize {
    at + code[at..]
        .iter()
        .take_while(|it| it.is_whitespace())
        .count()
}

fn wipe(code: &mut [char]) {
    for it in code.iter_mut().filter(|it| **it != '\n') {
        *it = ' ';
    }
}

/// Leaves out comments, and the texts between quotes.
fn without_texts(text: &str) -> Vec<char> {
    let mut code: Vec<char> = text.chars().collect();
    let mut at = 0;
    while at < code.len() {
        let end = end_of_text(&code, at);
        wipe(&mut code[at..end]);
        at = end.max(at + 1);
    }
    code
}

/// Where the comment or the literal ends that begins here; here, if none does.
fn end_of_text(code: &[char], at: usize) -> usize {
    let from_here = &code[at..];
    let hashes = from_here
        .iter()
        .skip(1)
        .take_while(|it| **it == '#')
        .count();
    let len = match from_here {
        ['/', '/', ..] => from_here.iter().take_while(|it| **it != '\n').count(),
        ['/', '*', ..] => len_of_block(from_here),
        ['"', ..] => len_of_quoted(from_here, '"'),
        ['r', ..] if is_start_of_raw(code, at) && from_here.get(1 + hashes) == Some(&'"') => {
            len_of_raw(from_here, hashes)
        }
        // Anything else behind a `'` is a lifetime.
        ['\'', '\\', ..] | ['\'', _, '\'', ..] => len_of_quoted(from_here, '\''),
        _ => 0,
    };
    at + len.min(from_here.len())
}

fn is_start_of_raw(code: &[char], at: usize) -> bool {
    let before: Vec<char> = code[..at]
        .iter()
        .rev()
        .copied()
        .take_while(|it| is_of_word(*it))
        .collect();
    matches!(before[..], [] | ['b' | 'c'])
}

fn len_of_quoted(code: &[char], quote: char) -> usize {
    let mut at = 1;
    while at < code.len() && code[at] != quote {
        at += if code[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

fn len_of_raw(code: &[char], hashes: usize) -> usize {
    let mut end = vec!['"'];
    end.resize(1 + hashes, '#');
    let text = &code[2 + hashes..];
    let len = text.windows(end.len()).take_while(|it| *it != end).count();
    2 + hashes + len + end.len()
}

fn len_of_block(code: &[char]) -> usize {
    let (mut at, mut depth) = (0, 0);
    while at < code.len() {
        match code[at..] {
            ['/', '*', ..] => (at, depth) = (at + 2, depth + 1),
            ['*', '/', ..] => (at, depth) = (at + 2, depth - 1),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

/// Leaves out the items that are for tests alone. Returns the names of those that are modules.
fn take_tests(code: &mut [char]) -> Vec<String> {
    let mut tests = Vec::new();
    for at in 0..code.len() {
        if !code[at..].starts_with(&['#', '[']) {
            continue;
        }
        let mut item = end_of_group(code, at + 1);
        let attribute: String = code[at..item]
            .iter()
            .filter(|it| !it.is_whitespace())
            .collect();
        if attribute != "#[cfg(test)]" && !attribute.starts_with("#[cfg(all(test,") {
            continue;
        }
        item = blank(code, item);
        // Its other attributes, and how visible it is.
        while code[item..].starts_with(&['#']) {
            item = blank(code, end_of_group(code, item + 1));
        }
        if word(code, item) == "pub" {
            item = blank(code, item + 3);
            if code[item] == '(' {
                item = blank(code, end_of_group(code, item));
            }
        }
        if word(code, item) == "mod" {
            tests.push(word(code, blank(code, item + 3)));
        }
        let end = end_of_item(code, item);
        wipe(&mut code[at..end]);
    }
    tests
}

/// Where the group ends that begins here.
fn end_of_group(code: &[char], start: usize) -> usize {
    let mut depth = 0;
    for (at, it) in code.iter().enumerate().skip(start) {
        match it {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    code.len()
}

/// Where the item ends that begins here: at its semicolon, or with its braces.
fn end_of_item(code: &[char], start: usize) -> usize {
    let mut at = start;
    while at < code.len() {
        match code[at] {
            ';' => return at + 1,
            '{' => return end_of_group(code, at),
            '(' | '[' => at = end_of_group(code, at),
            // What it is in ends before.
            ')' | ']' | '}' => return at,
            _ => at += 1,
        }
    }
    at
}
