//! A Rust file without comments, texts and tests, and the names that it uses.
//!
//! It reads the text by itself, without a parser: enough for the paths that this crate writes.

/// The code of a file. Parts that are left out are blank, so that lines keep their numbers.
pub(super) struct Code {
    code: Vec<char>,
    /// The names of the test modules that were left out.
    tests: Vec<String>,
}

/// A name of the crate's root, and the line that uses it.
pub(super) struct Used {
    /// From 1.
    pub(super) line: usize,
    /// The name; `*` for a glob import.
    pub(super) name: String,
}

impl Code {
    /// Blanks out comments, texts and tests.
    pub(super) fn new(text: &str) -> Self {
        let mut code = without_texts(text);
        let tests = take_tests(&mut code);
        Code { code, tests }
    }

    /// The names of the test modules that the file declares.
    pub(super) fn tests(&self) -> &[String] {
        &self.tests
    }

    /// The names of the other modules that the file declares.
    pub(super) fn modules(&self) -> Vec<String> {
        let declared = |at: &usize| word(&self.code, *at) == "mod";
        let names = self.words().filter(declared);
        names
            .map(|at| word(&self.code, blank(&self.code, at + 3)))
            .collect()
    }

    /// The names that the file re-exports, each with the module that it comes from.
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
                // `x as y` exports `y`.
                let name = item.split([' ', ':', '\n']).rfind(|it| !it.is_empty());
                exports.extend(name.map(|name| (name.to_owned(), module.clone())));
            }
        }
        exports
    }

    /// The names of the root that the file uses. `depth` is the number of modules from the root
    /// down to the file.
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
                // No module has a name `*`, so the caller reports it as unknown.
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

    /// The places at which words begin.
    fn words(&self) -> impl Iterator<Item = usize> {
        (0..self.code.len()).filter(|at| {
            is_of_word(self.code[*at]) && (*at == 0 || !is_of_word(self.code[*at - 1]))
        })
    }

    /// The place behind a path to the root, `crate::` or enough `super::`, that begins at `start`.
    /// `None` if no such path begins there.
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

    /// The place behind `::`, if that comes next.
    fn behind_colons(&self, at: usize) -> Option<usize> {
        let at = blank(&self.code, at);
        self.code[at..]
            .starts_with(&[':', ':'])
            .then(|| blank(&self.code, at + 2))
    }

    /// The places at which the items of a group begin, given the place of its opening brace.
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
        // The last comma may have no item behind it.
        items.retain(|at| self.code[*at] != '}');
        items
    }
}

/// Whether a word may contain the character.
fn is_of_word(it: char) -> bool {
    it.is_alphanumeric() || it == '_'
}

/// The word that begins here; empty if none does.
fn word(code: &[char], at: usize) -> String {
    code[at..]
        .iter()
        .copied()
        .take_while(|it| is_of_word(*it))
        .collect()
}

/// The first place from here on that is not white space.
fn blank(code: &[char], at: usize) -> usize {
    at + code[at..]
        .iter()
        .take_while(|it| it.is_whitespace())
        .count()
}

/// Blanks the code, except for line ends.
fn wipe(code: &mut [char]) {
    for it in code.iter_mut().filter(|it| **it != '\n') {
        *it = ' ';
    }
}

/// The characters of the text with comments and literals blanked out.
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

/// The end of the comment or literal that begins here; this place itself if none does.
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

/// Whether the `r` at this place can begin a raw string, alone or after `b` or `c`.
fn is_start_of_raw(code: &[char], at: usize) -> bool {
    let before: Vec<char> = code[..at]
        .iter()
        .rev()
        .copied()
        .take_while(|it| is_of_word(*it))
        .collect();
    matches!(before[..], [] | ['b' | 'c'])
}

/// The length of a literal in these quotes, with both of them.
fn len_of_quoted(code: &[char], quote: char) -> usize {
    let mut at = 1;
    while at < code.len() && code[at] != quote {
        at += if code[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

/// The length of a raw string with this many hashes.
fn len_of_raw(code: &[char], hashes: usize) -> usize {
    let mut end = vec!['"'];
    end.resize(1 + hashes, '#');
    let text = &code[2 + hashes..];
    let len = text.windows(end.len()).take_while(|it| *it != end).count();
    2 + hashes + len + end.len()
}

/// The length of a block comment, nested ones included.
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

/// Blanks out the items that are compiled for tests alone. Returns the names of the modules among
/// them.
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
        // Skips its other attributes and its visibility.
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

/// The place behind the group that begins here.
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

/// The place behind the item that begins here: behind its semicolon or its braces.
fn end_of_item(code: &[char], start: usize) -> usize {
    let mut at = start;
    while at < code.len() {
        match code[at] {
            ';' => return at + 1,
            '{' => return end_of_group(code, at),
            '(' | '[' => at = end_of_group(code, at),
            // The group around it ends before the item does.
            ')' | ']' | '}' => return at,
            _ => at += 1,
        }
    }
    at
}
