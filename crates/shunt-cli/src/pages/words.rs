//! Command lines of a shell, as far as the documentation uses them.

/// The simple commands of some lines: pipes, lists and substitutions are taken apart.
pub fn commands(text: &str) -> Vec<Vec<String>> {
    let mut all = Vec::new();
    let (mut words, mut word) = (Vec::new(), None::<String>);
    let (mut quote, mut redirected) = (None, false);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (Some(_), c) => word.get_or_insert_default().push(c),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, '\\') => match chars.next() {
                Some('\n') | None => {}
                Some(c) => word.get_or_insert_default().push(c),
            },
            (None, '#') if word.is_none() => while chars.next_if(|c| *c != '\n').is_some() {},
            (None, '>' | '<') => {
                // A number before it is a descriptor's.
                if word.as_ref().is_some_and(|word| word.chars().all(|c| c.is_ascii_digit())) {
                    word = None;
                }
                words.extend(word.take());
                redirected = true;
                while chars.next_if(|c| matches!(c, '>' | '<' | '&')).is_some() {}
                while chars.next_if_eq(&' ').is_some() {}
            }
            (None, c) if c.is_whitespace() || matches!(c, '|' | ';' | '&' | '(' | ')' | '`') => {
                let done = word.take();
                if !std::mem::take(&mut redirected) {
                    words.extend(done.filter(|word| word != "$"));
                }
                if !matches!(c, ' ' | '\t') {
                    all.push(std::mem::take(&mut words));
                }
            }
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    if !redirected {
        words.extend(word);
    }
    all.push(words);
    all.retain(|words| !words.is_empty());
    all
}

mod tests {
    use super::*;

    #[test]
    fn lines_are_taken_apart_as_a_shell_does() {
        let text = "a 'b c' | d \"e\\\" # not this\nf \\\n  g > h; i $(j k) && l 2>/dev/null &\n";
        let words = commands(text);
        let lines: Vec<_> = words.iter().map(|words| words.join("+")).collect();
        assert_eq!(lines, ["a+b c", "d+e\\", "f+g", "i", "j+k", "l"]);
    }
}
