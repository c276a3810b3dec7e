//! Permits of MySQL and MariaDB: each permit is a lock of `GET_LOCK`.

use std::fmt::Write;

/// The most permits that a name can have.
pub(crate) const MAX_MYSQL_PERMITS: u32 = 4096;

/// The permits of a name. A claim holds the lock of the name while it counts and takes them.
pub(crate) struct MysqlPermits<'a> {
    /// The lock of the name. An exclusive holder keeps it.
    pub(crate) gate: &'a str,
    /// The beginning of the permits' locks.
    pub(crate) begins: &'a str,
    /// The name as the table of tokens has it.
    pub(crate) name: &'a str,
    /// How many permits the name has, as the claim says.
    pub(crate) of: u32,
}

impl MysqlPermits<'_> {
    /// Returns the statements that take `n` permits or none. Each does nothing if one before it failed. The connection holds the gate
    /// only between the first one and the last one, so they are sent together.
    ///
    /// The last but one returns the numbers of the permits, the token, and whether an exclusive holder has the gate; `NULL`: the gate was
    /// free, or another claim takes permits at this moment.
    pub(crate) fn try_take(&self, n: u32, holder: &[u8]) -> [String; 6] {
        let (gate, name, holder) = (text(self.gate), text(self.name), text(holder));
        let (lock, numbers) = (self.lock(), numbers(self.of));
        let (low, high) = (text(self.begins), text(high(self.begins)));
        [
            format!("SET @fencepost_permits = NULL, @fencepost_gate = GET_LOCK({gate}, 0)"),
            // A user variable, because a subquery that locks may run more than once.
            format!(
                "SET @fencepost_permits = CASE WHEN @fencepost_gate = 1 AND {n} + (SELECT COUNT(*) FROM fencepost_token \
                 WHERE lock_name BETWEEN {low} AND {high} AND IS_USED_LOCK(lock_name) IS NOT NULL) <= {of} \
                 THEN (SELECT GROUP_CONCAT(i) FROM (SELECT i FROM {numbers} WHERE IS_USED_LOCK({lock}) IS NULL LIMIT {n}) AS free) END, \
                 @fencepost_token = (SELECT GREATEST(COALESCE(MAX(token) + 1, 0), CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS UNSIGNED)) \
                 FROM fencepost_token WHERE lock_name = {gate})",
                of = self.of
            ),
            format!(
                "SELECT SUM(GET_LOCK({lock}, 0)) FROM {numbers} WHERE FIND_IN_SET(i, @fencepost_permits)"
            ),
            // The row of the name keeps the last token. Session 0 says that the name's lock was not what was granted.
            format!(
                "INSERT INTO fencepost_token (lock_name, name, token, session, holder) \
                 SELECT IF(i < 0, {gate}, {lock}), {name}, @fencepost_token, IF(i < 0, 0, CONNECTION_ID()), IF(i < 0, '', {holder}) \
                 FROM (SELECT i FROM {numbers} WHERE FIND_IN_SET(i, @fencepost_permits) \
                 UNION ALL SELECT -1 FROM DUAL WHERE @fencepost_permits IS NOT NULL) AS taken \
                 ON DUPLICATE KEY UPDATE token = VALUES(token), session = VALUES(session), holder = VALUES(holder), evicted = NULL, why = NULL"
            ),
            format!(
                "SELECT @fencepost_permits, @fencepost_token, \
                 (SELECT session FROM fencepost_token WHERE lock_name = {gate}) = IS_USED_LOCK({gate}), @fencepost_gate = 1"
            ),
            format!(
                "SET @fencepost_permits = NULL, @fencepost_gate = CASE WHEN @fencepost_gate = 1 THEN 0 * RELEASE_LOCK({gate}) END"
            ),
        ]
    }

    /// Returns the statement that releases permits, and the gate if an attempt failed. It returns the number of permits that were held.
    pub(crate) fn release(&self, permits: &[u32]) -> String {
        let permits = permits.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        format!(
            "SELECT SUM(RELEASE_LOCK({})), RELEASE_LOCK({}) FROM {} WHERE FIND_IN_SET(i, '{permits}')",
            self.lock(),
            text(self.gate),
            numbers(self.of)
        )
    }

    /// Returns the lock of permit `i`. Claims that give another number of permits have other locks, and count these.
    fn lock(&self) -> String {
        format!("CONCAT({}, i)", text(format!("{}{}%", self.begins, self.of)))
    }
}

/// Returns a text behind all locks that begin so.
pub(crate) fn high(begins: &str) -> String {
    format!("{}&", begins.trim_end_matches('%'))
}

/// Returns a table of the numbers below `of`.
fn numbers(of: u32) -> String {
    let digits = (1..16).fold("(SELECT 0 AS d".to_owned(), |mut digits, digit| {
        let _ = write!(digits, " UNION ALL SELECT {digit}");
        digits
    }) + ")";
    let (sum, tables) = match of {
        0..=16 => ("a.d", format!("{digits} AS a")),
        17..=256 => ("a.d + 16 * b.d", format!("{digits} AS a, {digits} AS b")),
        _ => ("a.d + 16 * b.d + 256 * c.d", format!("{digits} AS a, {digits} AS b, {digits} AS c")),
    };
    format!("(SELECT {sum} AS i FROM {tables} WHERE {sum} < {of}) AS numbers")
}

/// Returns a text as MySQL and MariaDB read it in each mode: hexadecimal needs no quotes.
pub(crate) fn text(text: impl AsRef<[u8]>) -> String {
    text.as_ref().iter().fold("_utf8mb4 0x".to_owned(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_of_permits_lie_in_one_range() {
        let permits = MysqlPermits { gate: "shop:pool", begins: "shop%0a%", name: "pool", of: 300 };
        assert_eq!(high(permits.begins), "shop%0a&");
        assert_eq!(permits.lock(), format!("CONCAT({}, i)", text("shop%0a%300%")));
        assert!(numbers(300).ends_with("< 300) AS numbers") && !numbers(16).contains("b.d"));
        assert!(permits.release(&[1, 17]).ends_with("FIND_IN_SET(i, '1,17')"));
    }
}
