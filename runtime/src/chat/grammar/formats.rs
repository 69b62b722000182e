//! Regular expressions of the formats that a string may be asked for.

/// The expression of a format, `None` for one that is not enforced.
///
/// They are narrower than the standards where that keeps them readable: what they allow is of the
/// format, and not all that is of the format is allowed.
pub(super) fn expression(format: &str) -> Option<String> {
    const DATE: &str = r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])";
    const DATE_OF_LONGER_MONTHS: &str = r"[0-9]{4}-((0[13-9]|1[0-2])-(29|30)|(0[13578]|1[02])-31)";
    const TIME: &str = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?";
    const ZONE: &str = r"(Z|[+\-]([01][0-9]|2[0-3]):[0-5][0-9])";
    const LABEL: &str = r"[a-zA-Z0-9]([a-zA-Z0-9\-]{0,30}[a-zA-Z0-9])?";
    const BYTE: &str = r"(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])";
    let date = format!("({DATE}|{DATE_OF_LONGER_MONTHS})");
    let host = format!(r"{LABEL}(\.{LABEL}){{0,6}}");
    Some(match format {
        "date" => date,
        "time" => format!("{TIME}{ZONE}"),
        "date-time" => format!("{date}T{TIME}{ZONE}"),
        "email" => format!(
            r"[a-zA-Z0-9_+\-]{{1,15}}(\.[a-zA-Z0-9_+\-]{{1,15}}){{0,3}}@{LABEL}(\.{LABEL}){{1,4}}"
        ),
        "hostname" => host,
        "ipv4" => format!(r"{BYTE}(\.{BYTE}){{3}}"),
        "uuid" => r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}".to_owned(),
        "uri" => format!(
            r"[a-z][a-z0-9+.\-]{{0,15}}:\/\/{host}(:[0-9]{{1,4}})?(\/[a-zA-Z0-9._~\-]*){{0,16}}(\?[a-zA-Z0-9._~=&\-]*)?(#[a-zA-Z0-9._~\-]*)?"
        ),
        _ => return None,
    })
}
