//! The user of this process, as the author of what it does.

use sprag_store::Author;

/// Returns the user whose process this is. A user that the machine's list does not have is named by its number.
pub fn local_author() -> Author {
    let uid = rustix::process::getuid().as_raw();
    let listed = std::fs::read_to_string("/etc/passwd").ok().and_then(|users| name_in(&users, uid));
    Author::user(&listed.unwrap_or_else(|| format!("uid-{uid}")))
}

/// Returns the name of the user with this number in a list of users.
fn name_in(users: &str, uid: u32) -> Option<String> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, number) = (fields.next()?, fields.nth(1)?);
        (number.parse() == Ok(uid) && !name.is_empty()).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_its_number() {
        let users = "root:x:0:0:root:/root:/bin/sh\n\nbad line\nada:x:1000:1000::/home/ada:/bin/sh\n";
        assert_eq!(name_in(users, 1000).as_deref(), Some("ada"));
        assert_eq!(name_in(users, 0).as_deref(), Some("root"));
        assert_eq!(name_in(users, 7), None);
    }
}
