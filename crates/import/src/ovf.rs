//! The description of an appliance (OVF, DSP0243): which files are its disks, and in what order its machine has them. Hostile bytes.
//! No I/O.
//!
//! Only tags, attributes and texts are looked at, whatever stands before their colons: writers choose those prefixes.

/// Longest description, in bytes. Those of large appliances, with all their languages, have some hundred KB.
pub const BYTES_MAX: u64 = 4 << 20;
/// Most disks of an appliance that are looked at.
const DISKS_MAX: usize = 256;
/// What stands in the resource type of a disk.
const TYPE_DISK: &str = "17";

/// A disk of an appliance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Described {
    /// What the description calls it.
    pub id: String,
    /// The file that it is in; `None` for one that is made empty.
    pub file: Option<String>,
    /// Whether that file is one of many into which the disk is cut.
    pub chunked: bool,
    /// The disk that it is a layer over.
    pub parent: Option<String>,
}

/// A tag with its attributes, and the text that follows it.
struct Tag<'a> {
    name: &'a str,
    attributes: &'a str,
    is_end: bool,
    text: &'a str,
}

/// A device of the appliance's machine.
#[derive(Default)]
struct Item {
    id: String,
    parent: String,
    address: u64,
    kind: String,
    resource: String,
}

/// Returns the disks that a description names, in the order in which its machine has them: by their controllers and their places there,
/// and those that no device refers to as they are listed. `None` if it is no description, or names none.
///
/// # Errors
/// What is wrong with it, if it describes several machines.
pub fn disks(text: &str) -> Result<Option<Vec<Described>>, &'static str> {
    let (mut files, mut disks) = (Vec::new(), Vec::new());
    let (mut items, mut item, mut systems) = (Vec::new(), None, 0);
    for tag in tags(text) {
        let value = |key| attribute(tag.attributes, key);
        match (tag.name, tag.is_end) {
            ("VirtualSystem", false) => systems += 1,
            ("File", false) => files.push((
                value("id").unwrap_or_default(),
                value("href").unwrap_or_default(),
                value("chunkSize").is_some(),
            )),
            ("Disk", false) if disks.len() < DISKS_MAX => disks.push((
                value("diskId").unwrap_or_default(),
                value("fileRef"),
                value("parentRef"),
            )),
            ("Item" | "StorageItem", false) => item = Some(Item::default()),
            ("Item" | "StorageItem", true) => items.extend(item.take()),
            (field, false) => {
                if let Some(item) = &mut item {
                    let text = plain(tag.text.trim());
                    match field {
                        "InstanceID" => item.id = text,
                        "Parent" => item.parent = text,
                        "AddressOnParent" => item.address = text.parse().unwrap_or(u64::MAX),
                        "ResourceType" => item.kind = text,
                        "HostResource" => item.resource = text,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    if systems > 1 {
        return Err("it describes several machines");
    }
    let mut order: Vec<String> = attached(&items);
    order.extend(disks.iter().map(|(id, ..)| id.clone()));
    let mut found: Vec<Described> = Vec::new();
    for id in order {
        let disk = disks.iter().find(|(other, ..)| *other == id);
        let Some((_, file, parent)) = disk.filter(|_| found.iter().all(|one| one.id != id)) else {
            continue;
        };
        let file = file.as_ref().filter(|id| !id.is_empty());
        let listed = file.and_then(|id| files.iter().find(|(other, ..)| other == id));
        found.push(Described {
            id,
            // a file that is not listed is missed by the name that it is called by
            file: file.map(|id| listed.map_or(id.clone(), |(_, href, _)| href.clone())),
            chunked: listed.is_some_and(|(.., chunked)| *chunked),
            parent: parent.clone().filter(|id| !id.is_empty()),
        });
    }
    Ok(Some(found).filter(|found| !found.is_empty()))
}

/// Returns the ids of the disks that a machine's devices refer to, in order.
fn attached(items: &[Item]) -> Vec<String> {
    let place = |parent: &str| items.iter().position(|item| item.id == parent);
    let mut disks: Vec<_> = items
        .iter()
        .filter(|item| item.kind == TYPE_DISK)
        .take(DISKS_MAX)
        .filter_map(|item| {
            let id = item.resource.rsplit_once("/disk/")?.1.to_owned();
            Some((place(&item.parent), item.address, id))
        })
        .collect();
    disks.sort_by_key(|(place, address, _)| (place.unwrap_or(usize::MAX), *address));
    disks.into_iter().map(|(.., id)| id).collect()
}

/// Goes through the tags of a text.
fn tags(text: &str) -> impl Iterator<Item = Tag<'_>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        loop {
            let (_, after) = rest.split_once('<')?;
            let skipped = [("!--", "-->"), ("![CDATA[", "]]>"), ("?", "?>"), ("!", ">")];
            if let Some((_, end)) = skipped.iter().find(|(begin, _)| after.starts_with(begin)) {
                rest = after.split_once(end)?.1;
                continue;
            }
            let (tag, after) = after.split_at(end_of_tag(after)?);
            rest = &after[1..];
            let is_end = tag.starts_with('/');
            let tag = tag.trim_start_matches('/').trim_end_matches('/');
            let (name, attributes) = tag.split_once(char::is_whitespace).unwrap_or((tag, ""));
            return Some(Tag {
                name: local(name),
                attributes,
                is_end,
                text: rest.split('<').next().unwrap_or_default(),
            });
        }
    })
}

/// Returns where a tag's `>` is, outside of values.
fn end_of_tag(text: &str) -> Option<usize> {
    let mut quote = None;
    text.char_indices().find_map(|(at, c)| {
        match (quote, c) {
            (None, '>') => return Some(at),
            (None, '"' | '\'') => quote = Some(c),
            (Some(open), c) if c == open => quote = None,
            _ => {}
        }
        None
    })
}

/// Returns a name without its prefix.
fn local(name: &str) -> &str {
    let name = name.trim();
    name.rsplit_once(':').map_or(name, |(_, local)| local)
}

/// Returns the value of an attribute.
fn attribute(attributes: &str, key: &str) -> Option<String> {
    let mut rest = attributes;
    loop {
        let (name, after) = rest.split_once('=')?;
        let after = after.trim_start();
        let quote = after.chars().next().filter(|c| ['"', '\''].contains(c))?;
        let (value, after) = after[1..].split_once(quote)?;
        if local(name) == key {
            return Some(plain(value));
        }
        rest = after;
    }
}

/// Replaces what stands for characters with a meaning of their own.
fn plain(text: &str) -> String {
    if !text.contains('&') {
        return text.to_owned();
    }
    let known = [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&apos;", "'"),
        ("&amp;", "&"),
    ];
    known
        .iter()
        .fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFERENCES: &str = "<?xml version='1.0'?><!-- <File ovf:id='no'/> --><ovf:Envelope xmlns:ovf='http://x'><ovf:References>\
        <ovf:File ovf:href=\"b.vmdk\" ovf:id=\"f2\" ovf:size=\"5\"/><File id='f1' href='a &amp; a.vmdk'/>\
        <File id='f3' href='c.vmdk' chunkSize='100'/></ovf:References>";
    const DISKS: &str = "<DiskSection><Info>x</Info><Disk ovf:diskId='d2' ovf:fileRef='f2' ovf:capacity='1'/>\
        <Disk diskId='d1' fileRef='f1'/><Disk diskId='d3' capacity='9'/></DiskSection>";

    fn item(id: u32, parent: u32, address: u32, kind: u32, resource: &str) -> String {
        format!(
            "<Item><rasd:AddressOnParent>{address}</rasd:AddressOnParent><rasd:HostResource>{resource}</rasd:HostResource>\
             <rasd:InstanceID>{id}</rasd:InstanceID><rasd:Parent>{parent}</rasd:Parent>\
             <rasd:ResourceType>{kind}</rasd:ResourceType></Item>"
        )
    }

    fn files(text: &str) -> Vec<Option<String>> {
        let found = disks(text).unwrap().unwrap_or_default();
        found.into_iter().map(|disk| disk.file).collect()
    }

    #[test]
    fn disks_come_in_the_order_in_which_the_machine_has_them() {
        let listed = format!("{REFERENCES}{DISKS}");
        let some = |name: &str| Some(name.to_owned());
        assert_eq!(files(&listed), [some("b.vmdk"), some("a & a.vmdk"), None]);
        let system = [
            item(3, 0, 0, 6, ""),
            item(4, 0, 1, 5, ""),
            item(9, 4, 0, 17, "/disk/d3"),
            item(8, 3, 1, 17, "ovf:/disk/d2"),
            item(7, 3, 0, 17, "ovf:/disk/d1"),
            item(6, 4, 1, 15, "ovf:/file/f9"),
        ];
        let text = format!(
            "{listed}<VirtualSystem>{}</VirtualSystem></ovf:Envelope>",
            system.concat()
        );
        assert_eq!(files(&text), [some("a & a.vmdk"), some("b.vmdk"), None]);
        let chunked = "<Disk diskId='d' fileRef='f3' parentRef='d0'/>";
        let found = disks(&format!("{REFERENCES}{chunked}")).unwrap().unwrap();
        assert!(found[0].chunked && found[0].parent.as_deref() == Some("d0"));
    }

    #[test]
    fn what_describes_no_disks_or_several_machines_is_not_guessed_at() {
        for text in [
            "",
            "<",
            "hello",
            "<?xml?><Envelope/>",
            REFERENCES,
            "<Disk",
            "<a b='>",
            "<!-- <Disk diskId='d'/>",
        ] {
            assert_eq!(disks(text), Ok(None), "{text}");
        }
        let two = format!("{REFERENCES}{DISKS}<VirtualSystem/><VirtualSystem/>");
        assert!(disks(&two).is_err());
        // what is cut anywhere is read as far as it goes
        let whole = format!("{REFERENCES}{DISKS}{}", item(1, 0, 0, 17, "ovf:/disk/d1"));
        for end in (0..whole.len()).filter(|end| whole.is_char_boundary(*end)) {
            let _ = disks(&whole[..end]);
        }
    }
}
