//! Texts: their words, and the file of a text index.
//!
//! A document is the set of its words, and a text index is a collection of such sets with the texts
//! (Mersy, Wang, Sintos, Krishnan 2024). Its filters are in memory by rows: `collection/sliced/`.

/// The kind number of a text index in a frame.
pub const KIND: u16 = 18;
/// Section type: bytes of each document, 4 bytes each.
pub const SECTION_LENGTHS: u32 = 20;
/// Section type: stop words, one per line.
pub const SECTION_STOPS: u32 = 21;
/// The error message if a text index is opened as something else.
pub const OPENS_IT: &str = "this is a text index: open it with tamis.text.SearchIndex.open";

/// The words of a text: runs of characters that continue a Unicode identifier (letters, marks,
/// digits), except connectors such as the underscore.
pub fn words(text: &str) -> impl Iterator<Item = &str> {
    // NFKC normalization removes the other connectors.
    let joins = |c: char| matches!(c, '_' | '\u{203F}' | '\u{2040}' | '\u{2054}');
    text.split(move |c: char| joins(c) || !unicode_ident::is_xid_continue(c))
        .filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_follow_unicode() {
        let all: Vec<&str> = words("naïve Δοκιμή, snake_case: हिन्दी 42nd—don't").collect();
        assert_eq!(all, ["naïve", "Δοκιμή", "snake", "case", "हिन्दी", "42nd", "don", "t"]);
        assert_eq!(words(" \t,. ").count(), 0);
    }
}
