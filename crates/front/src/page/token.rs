//! The page's token. Whoever has it has the same rights as somebody who may open the node's socket.

use floe_api::paths::Home;
use floe_image::Hash;
use floe_store::Durability;
use std::{
    fs::File,
    io::{self, Read},
};

/// Fewest characters of a token that an operator chooses: as many as 64 random bits have in hexadecimal.
pub const TOKEN_CHARACTERS_MIN: usize = 16;
/// Most characters of a token.
pub const TOKEN_CHARACTERS_MAX: usize = 256;
/// Number of random bytes in a token that floe makes.
const TOKEN_BYTES: usize = 24;

/// A secret that a browser sends once and then keeps as a cookie.
#[derive(Clone)]
pub struct Token {
    text: String,
    hash: Hash,
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Why a token can't be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// It is too short, too long, or has characters that an address and a cookie can't contain.
    #[error(
        "the page's token must have {TOKEN_CHARACTERS_MIN} to {TOKEN_CHARACTERS_MAX} letters, digits, - or _"
    )]
    Form,
    /// The token's file could not be used.
    #[error("cannot keep the page's token in {path}: {source}")]
    File {
        /// The file.
        path: String,
        /// The operating system's error.
        source: io::Error,
    },
}

impl Token {
    /// Uses a token that the operator chose.
    pub fn chosen(text: &str) -> Result<Token, TokenError> {
        let fits = (TOKEN_CHARACTERS_MIN..=TOKEN_CHARACTERS_MAX).contains(&text.len());
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if !fits || !text.bytes().all(plain) {
            return Err(TokenError::Form);
        }
        Ok(Token {
            hash: Hash::of(text.as_bytes()),
            text: text.to_owned(),
        })
    }

    /// Returns the token of this state directory; makes it at the first call. Only the node's user can read its file.
    pub fn of_home(home: &Home) -> Result<Token, TokenError> {
        let path = home.root().join("page.token");
        let failed = |source| TokenError::File {
            path: path.display().to_string(),
            source,
        };
        let mut text = String::new();
        match File::open(&path) {
            Ok(file) => {
                let most = TOKEN_CHARACTERS_MAX as u64 + 1;
                file.take(most).read_to_string(&mut text).map_err(failed)?;
                if let Ok(token) = Token::chosen(text.trim()) {
                    return Ok(token);
                }
                tracing::warn!(path = %path.display(), "holds no token; a new one is made");
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        let bytes: [u8; TOKEN_BYTES] = rand::random();
        let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let written = floe_store::replace_file(&path, text.as_bytes(), 0o600, Durability::Durable);
        written.map_err(failed)?;
        Token::chosen(&text)
    }

    /// Returns the secret.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns whether this is the token. Hashes are compared, so that the time taken reveals nothing.
    pub fn is(&self, given: &str) -> bool {
        given.len() <= TOKEN_CHARACTERS_MAX && Hash::of(given.as_bytes()) == self.hash
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_token_outlives_its_node_and_is_nobody_elses_to_read() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::at(dir.path());
        let first = Token::of_home(&home).unwrap();
        let second = Token::of_home(&home).unwrap();
        assert!(first.is(second.text()) && first.text().len() == 2 * TOKEN_BYTES);
        let file = dir.path().join("page.token");
        let mode = std::fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        std::fs::write(&file, "x").unwrap();
        assert!(
            !first.is(Token::of_home(&home).unwrap().text()),
            "damage makes a new one"
        );
    }

    #[test]
    fn only_the_token_is_the_token() {
        let token = Token::chosen("0123456789abcdef").unwrap();
        assert!(token.is("0123456789abcdef"));
        for wrong in [
            "",
            "0123456789abcdeF",
            "0123456789abcdef0",
            &"0".repeat(10_000),
        ] {
            assert!(!token.is(wrong));
        }
        for bad in [
            "",
            "short",
            "with space 0123456789",
            "semi;colon0123456789",
            &"0".repeat(300),
        ] {
            assert!(Token::chosen(bad).is_err(), "{bad}");
        }
        assert!(!format!("{token:?}").contains("0123"));
    }
}
