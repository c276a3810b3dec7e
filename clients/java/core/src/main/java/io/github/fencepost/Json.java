package io.github.fencepost;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** JSON, because the JDK has none: objects are maps, arrays are lists, numbers are {@link Long} or {@link Double}. */
final class Json {
    private static final int DEEPEST = 64;

    private final String text;
    private int at;

    private Json(String text) {
        this.text = text;
    }

    /** Reads a text. Throws {@link IllegalArgumentException} if it is no JSON. */
    static Object read(String text) {
        Json json = new Json(text);
        Object value = json.value(0);
        json.space();
        if (json.at < text.length()) {
            throw json.fault("the end");
        }
        return value;
    }

    /** Reads an object. Returns an empty map for all other texts. */
    @SuppressWarnings("unchecked")
    static Map<String, Object> readObject(String text) {
        try {
            return read(text) instanceof Map<?, ?> map ? (Map<String, Object>) map : Map.of();
        } catch (IllegalArgumentException e) {
            return Map.of();
        }
    }

    /** Writes maps, lists, texts, numbers and booleans. Fields whose value is null are left out. */
    static String write(Object value) {
        StringBuilder out = new StringBuilder();
        write(value, out);
        return out.toString();
    }

    private static void write(Object value, StringBuilder out) {
        if (value instanceof Map<?, ?> map) {
            out.append('{');
            map.forEach((key, one) -> {
                if (one != null) {
                    out.append(out.charAt(out.length() - 1) == '{' ? "" : ",");
                    quote(key.toString(), out);
                    out.append(':');
                    write(one, out);
                }
            });
            out.append('}');
        } else if (value instanceof List<?> list) {
            out.append('[');
            for (int i = 0; i < list.size(); i++) {
                out.append(i == 0 ? "" : ",");
                write(list.get(i), out);
            }
            out.append(']');
        } else if (value == null || value instanceof Number || value instanceof Boolean) {
            out.append(value);
        } else {
            quote(value.toString(), out);
        }
    }

    private static void quote(String text, StringBuilder out) {
        out.append('"');
        for (int i = 0; i < text.length(); i++) {
            char c = text.charAt(i);
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else if (c < ' ' || Character.isSurrogate(c)) {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        out.append('"');
    }

    private Object value(int depth) {
        if (depth > DEEPEST) {
            throw fault("fewer levels");
        }
        space();
        switch (peek()) {
            case '{' -> {
                at++;
                Map<String, Object> map = new LinkedHashMap<>();
                while (!ends('}', map.isEmpty())) {
                    space();
                    String key = string();
                    space();
                    expect(":");
                    map.put(key, value(depth + 1));
                }
                return map;
            }
            case '[' -> {
                at++;
                List<Object> list = new ArrayList<>();
                while (!ends(']', list.isEmpty())) {
                    list.add(value(depth + 1));
                }
                return list;
            }
            case '"' -> {
                return string();
            }
            case 't' -> {
                return expect("true") ? Boolean.TRUE : null;
            }
            case 'f' -> {
                return expect("false") ? Boolean.FALSE : null;
            }
            case 'n' -> {
                return expect("null") ? null : "";
            }
            default -> {
                return number();
            }
        }
    }

    /** Reads a comma, or the end of an array or object. */
    private boolean ends(char end, boolean isFirst) {
        space();
        if (peek() == end) {
            at++;
            return true;
        }
        if (!isFirst) {
            expect(",");
        }
        return false;
    }

    private Object number() {
        int from = at;
        while (at < text.length() && "+-.eE0123456789".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
        String number = text.substring(from, at);
        try {
            return number.matches("-?[0-9]{1,18}") ? (Object) Long.parseLong(number) : (Object) Double.parseDouble(number);
        } catch (NumberFormatException e) {
            throw fault("a value");
        }
    }

    private String string() {
        expect("\"");
        StringBuilder out = new StringBuilder();
        while (true) {
            char c = next();
            if (c == '"') {
                return out.toString();
            }
            if (c != '\\') {
                out.append(c);
                continue;
            }
            char escape = next();
            switch (escape) {
                case 'b' -> out.append('\b');
                case 'f' -> out.append('\f');
                case 'n' -> out.append('\n');
                case 'r' -> out.append('\r');
                case 't' -> out.append('\t');
                case 'u' -> {
                    int code = 0;
                    for (int i = 0; i < 4; i++) {
                        int digit = Character.digit(next(), 16);
                        if (digit < 0) {
                            throw fault("a hexadecimal digit");
                        }
                        code = code * 16 + digit;
                    }
                    out.append((char) code);
                }
                case '"', '\\', '/' -> out.append(escape);
                default -> throw fault("an escape");
            }
        }
    }

    private void space() {
        while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
    }

    private char peek() {
        return at < text.length() ? text.charAt(at) : '\0';
    }

    private char next() {
        if (at >= text.length()) {
            throw fault("more");
        }
        return text.charAt(at++);
    }

    private boolean expect(String word) {
        if (!text.startsWith(word, at)) {
            throw fault(word);
        }
        at += word.length();
        return true;
    }

    private IllegalArgumentException fault(String wanted) {
        return new IllegalArgumentException("no JSON: expected " + wanted + " at " + at);
    }
}
