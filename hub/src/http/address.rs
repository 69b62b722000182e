//! Addresses: what two of them have in common, and where a redirect leads.

use ureq::http::Uri;

/// An `http` or `https` address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    text: String,
    uri: Uri,
}

impl Address {
    pub fn parse(text: &str) -> Option<Address> {
        let uri: Uri = text.parse().ok()?;
        let known = matches!(uri.scheme_str(), Some("http" | "https"));
        // A name before an @ would be a password, and hides where the address leads.
        let plain = !uri.authority()?.as_str().contains('@');
        (known && plain).then(|| Address { text: text.into(), uri })
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Host and port, for messages: neither path nor query, which may be signed.
    pub fn host(&self) -> String {
        self.uri.authority().map(ToString::to_string).unwrap_or_default()
    }

    pub fn is_encrypted(&self) -> bool {
        self.uri.scheme_str() == Some("https")
    }

    fn port(&self) -> u16 {
        self.uri.port_u16().unwrap_or(if self.is_encrypted() { 443 } else { 80 })
    }

    /// Same scheme, host and port.
    pub fn is_same_origin(&self, other: &Address) -> bool {
        let host = |address: &Address| address.uri.host().map(str::to_ascii_lowercase);
        self.is_encrypted() == other.is_encrypted()
            && host(self) == host(other)
            && self.port() == other.port()
    }

    pub fn is_this_machine(&self) -> bool {
        let host = self.uri.host().unwrap_or_default().trim_matches(['[', ']']);
        host.eq_ignore_ascii_case("localhost")
            || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
    }

    /// Where a `Location` leads: a whole address, or a path on this host.
    pub fn join(&self, location: &str) -> Option<Address> {
        let scheme = self.uri.scheme_str()?;
        if location.starts_with("//") {
            return Address::parse(&format!("{scheme}:{location}"));
        }
        if location.starts_with('/') {
            return Address::parse(&format!("{scheme}://{}{location}", self.host()));
        }
        Address::parse(location)
    }
}

/// A path or revision within an address: everything is escaped that could mean something there,
/// slashes excepted.
pub(crate) fn escaped(path: &str) -> String {
    let mut text = String::new();
    for byte in path.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                text.push(byte.into());
            }
            _ => text += &format!("%{byte:02X}"),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_and_redirects() {
        let hub = Address::parse("https://huggingface.co/a/b?x=1").unwrap();
        let same = |text: &str| Address::parse(text).unwrap().is_same_origin(&hub);
        assert!(same("https://HuggingFace.co:443/c"));
        for other in [
            "http://huggingface.co/a",
            "https://huggingface.co:8443/a",
            "https://huggingface.co.example.com/a",
            "https://cdn.huggingface.co/a",
        ] {
            assert!(!same(other), "{other}");
        }
        assert!(Address::parse("https://huggingface.co@example.com/").is_none());
        assert!(Address::parse("ftp://huggingface.co/").is_none());
        let leads = |to: &str| hub.join(to).map(|address| address.as_str().to_string());
        assert_eq!(leads("/c/d").unwrap(), "https://huggingface.co/c/d");
        assert_eq!(leads("//cdn.co/d").unwrap(), "https://cdn.co/d");
        assert_eq!(leads("http://cdn.co/d").unwrap(), "http://cdn.co/d");
        assert_eq!(leads("elsewhere"), None);
    }

    #[test]
    fn escapes() {
        assert_eq!(escaped("w4pack/a b#c?.json"), "w4pack/a%20b%23c%3F.json");
    }
}
