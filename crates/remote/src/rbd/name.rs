//! File names that mean an image: `rbd:POOL[/NAMESPACE]/IMAGE[@SNAPSHOT][:OPTION=VALUE...]`, as QEMU has them. A backslash before a character takes
//! its meaning away.

use thiserror::Error;

/// What a name says. Empty where it says nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageName {
    /// The pool.
    pub pool: String,
    /// A namespace of the pool.
    pub namespace: String,
    /// The image.
    pub image: String,
    /// A snapshot of it.
    pub snapshot: String,
    /// `conf`: Ceph's configuration file.
    pub conf: String,
    /// `id`: the user.
    pub user: String,
    /// `mon_host`: addresses of monitors.
    pub monitors: String,
    /// `auth_supported`, or `auth_client_required`: kinds of authentication.
    pub auth: String,
}

/// What is allowed.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum NameError {
    /// It is no such name.
    #[error("rbd:POOL[/NAMESPACE]/IMAGE[@SNAPSHOT][:conf=FILE][:id=USER][:mon_host=ADDRESSES]")]
    Form,
    /// It has credentials.
    #[error("a key only by its secret: driver=rbd,key-secret=ID (a name is in logs and lists of processes)")]
    Key,
}

impl ImageName {
    /// Reads a name.
    ///
    /// # Errors
    /// When it is none, or has a key in it. The error has no part of the name.
    pub fn parse(name: &str) -> Result<Self, NameError> {
        let name = name.strip_prefix("rbd:").ok_or(NameError::Form)?;
        let mut parts = split(name, ':').into_iter();
        let place = parts.next().ok_or(NameError::Form)?;
        let mut found = Self::place(place)?;
        for part in parts {
            let (option, value) = part.split_once('=').ok_or(NameError::Form)?;
            let field = match option {
                "conf" => &mut found.conf,
                "id" => &mut found.user,
                "mon_host" => &mut found.monitors,
                "auth_supported" | "auth_client_required" => &mut found.auth,
                "key" | "keyfile" | "keyring" => return Err(NameError::Key),
                _ => return Err(NameError::Form),
            };
            if value.is_empty() || !std::mem::replace(field, plain(value)).is_empty() {
                return Err(NameError::Form);
            }
        }
        Ok(found)
    }

    fn place(place: &str) -> Result<Self, NameError> {
        let (image, snapshot) = match split(place, '@').as_slice() {
            [image] => (*image, ""),
            [image, snapshot] if !snapshot.is_empty() => (*image, *snapshot),
            _ => return Err(NameError::Form),
        };
        let (pool, namespace, image) = match split(image, '/').as_slice() {
            [pool, image] => (*pool, "", *image),
            [pool, namespace, image] => (*pool, *namespace, *image),
            _ => return Err(NameError::Form),
        };
        if pool.is_empty() || image.is_empty() {
            return Err(NameError::Form);
        }
        let [pool, namespace, image, snapshot] = [pool, namespace, image, snapshot].map(plain);
        Ok(Self { pool, namespace, image, snapshot, ..Self::default() })
    }
}

/// What messages call an image by a file name: without what else the name says, which may be a key.
pub fn shown(name: &str) -> String {
    let place = name.strip_prefix("rbd:").and_then(|rest| split(rest, ':').into_iter().next());
    place.map_or_else(|| "rbd:".to_owned(), |place| format!("rbd:{place}"))
}

/// The name of an image, without how it is reached.
pub fn name_of([pool, namespace, image, snapshot]: [&str; 4]) -> String {
    let escaped = |text: &str| {
        let special = |c: char| matches!(c, ':' | '/' | '@' | '\\');
        text.chars().flat_map(|c| special(c).then_some('\\').into_iter().chain([c])).collect::<String>()
    };
    let part = |separator: &str, text: &str, is_before: bool| match (text.is_empty(), is_before) {
        (true, _) => String::new(),
        (false, true) => escaped(text) + separator,
        (false, false) => separator.to_owned() + &escaped(text),
    };
    let (namespace, snapshot) = (part("/", namespace, true), part("@", snapshot, false));
    format!("rbd:{}/{namespace}{}{snapshot}", escaped(pool), escaped(image))
}

/// The parts between `separator`s that no backslash stands before.
fn split(text: &str, separator: char) -> Vec<&str> {
    let mut is_escaped = false;
    text.split(|c| {
        let is_one = c == separator && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        is_one
    })
    .collect()
}

/// Without the backslashes that take away meanings.
fn plain(text: &str) -> String {
    let mut is_escaped = false;
    let kept = |c: &char| {
        is_escaped = *c == '\\' && !is_escaped;
        !is_escaped
    };
    text.chars().filter(kept).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_qemu_mean_what_they_mean_there() {
        let named = |pool: &str, namespace: &str, image: &str, snapshot: &str| ImageName {
            pool: pool.into(),
            namespace: namespace.into(),
            image: image.into(),
            snapshot: snapshot.into(),
            ..ImageName::default()
        };
        let parse = |name| ImageName::parse(name);
        assert_eq!(parse("rbd:p/i"), Ok(named("p", "", "i", "")));
        assert_eq!(parse("rbd:p/n/i@s"), Ok(named("p", "n", "i", "s")));
        assert_eq!(parse(r"rbd:p/a\:b\@c\/d\\e@s"), Ok(named("p", "", r"a:b@c/d\e", "s")));
        let with = ImageName {
            conf: "/a b.conf".into(),
            user: "u".into(),
            monitors: "1.2.3.4:6789,[::1]:3300".into(),
            ..named("p", "", "i", "")
        };
        assert_eq!(parse(r"rbd:p/i:conf=/a b.conf:id=u:mon_host=1.2.3.4\:6789,[\:\:1]\:3300"), Ok(with));
        for wrong in
            ["rbd:", "rbd:p", "rbd:/i", "rbd:p/", "rbd:p/i@", "rbd:p/n/i/x", "rbd:p/i:conf", "rbd:p/i:x=y"]
        {
            assert_eq!(parse(wrong), Err(NameError::Form), "{wrong}");
        }
        assert_eq!(parse("rbd:p/i:id=a:id=b"), Err(NameError::Form));
    }

    #[test]
    fn a_key_in_a_name_is_refused_and_not_shown() {
        let refused = ImageName::parse("rbd:p/i:id=u:key=AQBhush==").unwrap_err();
        assert!(refused == NameError::Key && !refused.to_string().contains("hush"));
        assert_eq!(shown("rbd:p/i@s:key=AQBhush=="), "rbd:p/i@s");
        let parts = ["p", "", r"a:b@c/d\e", "s"];
        let ImageName { pool, namespace, image, snapshot, .. } = ImageName::parse(&name_of(parts)).unwrap();
        assert_eq!([&*pool, &*namespace, &*image, &*snapshot], parts);
    }
}
