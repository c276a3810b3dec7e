use super::*;

#[test]
fn the_message_names_resource_engine_and_effect() {
    let error = Error::new(ErrorKind::Unreachable, "no answer within 2s; try again")
        .of("stock/42")
        .on("redis")
        .unknown();
    assert_eq!(
        error.to_string(),
        "stock/42: no answer within 2s; try again; the request may have taken effect [redis]"
    );
    assert!(error.is_transient() && error.is_unreachable());
}

#[test]
fn only_what_is_being_undone_is_called_so() {
    let lost = || Error::new(ErrorKind::Unreachable, "no answer").on("redis").unknown();
    let undone = "failed: no answer; the request may have taken effect, and is being undone [redis]";
    let failed = |cause: Error| Error::new(ErrorKind::Timeout, "failed").on("redis").because_of(cause);
    assert_eq!(failed(lost().undone()).to_string(), undone);
    assert_eq!(failed(lost()).undone().to_string(), undone);
    assert_eq!(failed(lost()).to_string(), "failed: no answer; the request may have taken effect [redis]");
    assert_eq!(lost().without_effect().undone().to_string(), "no answer [redis]");
}

#[test]
fn a_cause_of_several_lines_is_written_in_one() {
    let error = Error::new(ErrorKind::Configuration, "h:1 does not speak as Redis does").on("redis");
    let text = error.because("Parse error at 1\nUnexpected `33`\n").to_string();
    assert_eq!(text, "h:1 does not speak as Redis does: Parse error at 1; Unexpected `33`");
}

#[test]
fn an_engine_that_the_text_ends_with_is_not_named_twice() {
    let why = Error::new(ErrorKind::Unreachable, "no answer in time").on("redis");
    let error = Error::lost("stock/42", Loss::Expired);
    let message = format!("{}; the last renewal failed: {why}", error.0.message);
    let text = error.saying(&message).on("redis").to_string();
    assert!(text.ends_with("failed: no answer in time [redis]"), "{text}");
    let error = Error::new(ErrorKind::Unreachable, "the position could not be renewed")
        .because(why.to_string())
        .on("redis");
    assert!(error.to_string().ends_with("renewed: no answer in time [redis]"), "{error}");
}

#[test]
fn a_main_that_returns_an_error_prints_the_message() {
    let error = Error::new(ErrorKind::Unreachable, "no connection").on("redis").because("refused");
    assert_eq!(format!("{error:?}"), "no connection: refused [redis]");
    assert!(format!("{error:#?}").contains("kind: Unreachable"));
}

#[test]
fn an_engine_that_the_message_names_is_not_named_again() {
    let error = Error::new(ErrorKind::Unreachable, "cannot connect to Redis at h:1").on("redis");
    assert_eq!(error.to_string(), "cannot connect to Redis at h:1");
    assert_eq!(error.because("refused").to_string(), "cannot connect to Redis at h:1: refused");
}
