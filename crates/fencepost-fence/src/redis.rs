//! Scripts for values in Redis.
//!
//! Each value has a key of its own for its token. Both keys need the same expiry or none, and in a cluster the same hash tag:
//! `{stock/42}` and `{stock/42}:token`. Tokens are compared as decimal text: Lua's numbers are exact up to 2^53 only.

/// A script that does `$work` unless a later holder was here. Then it returns `$refused`.
macro_rules! fenced {
    ($refused:literal, $work:literal) => {
        concat!(
            r"
local token, seen = ARGV[1] or '', redis.call('GET', KEYS[2])
for _, number in ipairs({token, seen or token}) do
  if not string.find(number, '^[1-9]%d*$') or #number > 20 then
    return redis.error_reply('ERR this is no fencing token: ' .. number)
  end
end
if seen and (#token < #seen or (#token == #seen and token < seen)) then
  return ",
            $refused,
            r"
end
redis.call('SET', KEYS[2], token)
",
            $work
        )
    };
}

/// Sets a string if no greater token was seen.
///
/// `KEYS[1]`: the value. `KEYS[2]`: its token. `ARGV[1]`: the token in decimal. `ARGV[2]`: the new value. Returns 1 after the
/// write, and 0 if a later holder was here. Fails if a token is no number.
pub const WRITE: &str = fenced!(
    "0",
    r"redis.call('SET', KEYS[1], ARGV[2])
return 1
"
);

/// Shows the token and gets a string.
///
/// `KEYS[1]`: the value. `KEYS[2]`: its token. `ARGV[1]`: the token in decimal. Returns an array: 1 and the value, which is nil if
/// there is none; or 0 alone if a later holder was here. Fails if a token is no number.
pub const READ: &str = fenced!(
    "{0}",
    r"return {1, redis.call('GET', KEYS[1])}
"
);
