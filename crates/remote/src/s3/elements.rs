//! What the store's answers in XML say. Their elements have no attributes and are not nested in one of their own name.

/// What stands in the first element of this name.
pub(crate) fn element<'b>(body: &'b [u8], name: &str) -> Option<&'b str> {
    inside(std::str::from_utf8(body).ok()?, name)
}

/// What stands in each element of this name.
pub(crate) fn elements<'b>(text: &'b str, name: &str) -> impl Iterator<Item = &'b str> {
    let (start, end) = (format!("<{name}>"), format!("</{name}>"));
    let mut rest = text;
    std::iter::from_fn(move || {
        let (_, behind) = rest.split_once(&start)?;
        let (inside, behind) = behind.split_once(&end)?;
        rest = behind;
        Some(inside)
    })
}

/// What stands in the first element of this name.
pub(crate) fn inside<'b>(text: &'b str, name: &str) -> Option<&'b str> {
    elements(text, name).next()
}

/// The text that is meant.
pub(crate) fn unescaped(text: &str) -> String {
    let text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"");
    text.replace("&apos;", "'").replace("&#39;", "'").replace("&#34;", "\"").replace("&amp;", "&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_found_in_an_answer_and_nothing_in_another_one() {
        let body = b"<?xml?><R xmlns=\"x\"><UploadId>a&amp;b</UploadId></R>";
        assert_eq!(element(body, "UploadId").map(unescaped).as_deref(), Some("a&b"));
        assert_eq!(element(body, "ETag"), None);
        assert_eq!(element(b"\xff<ETag>x</ETag>", "ETag"), None);
    }

    #[test]
    fn elements_of_one_name_are_found_each_once() {
        let text = "<R><C><Key>a</Key></C><C><Key>b</Key></C><C><Key>c</R>";
        assert_eq!(elements(text, "Key").collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(elements(text, "C").filter_map(|one| inside(one, "Key")).collect::<Vec<_>>(), ["a", "b"]);
    }
}
