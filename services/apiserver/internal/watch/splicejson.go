package watch

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
)

// spliceJSON is a JSON object with metadata.resourceVersion set, and a final
// newline. It goes through the document once: members keep their order and their
// bytes, and what is added stands where the order of names wants it.
func spliceJSON(value []byte, version string) ([]byte, error) {
	if !json.Valid(value) {
		return nil, errNoEnvelope
	}
	value = bytes.TrimSpace(value)
	place, ok := memberOf(value, 0, "metadata")
	if !ok {
		return nil, errNoEnvelope
	}
	quoted := strconv.Quote(version)
	if !place.found || value[place.start] == 'n' { // there is no metadata, or it is null
		return place.put(value, "metadata", `{"resourceVersion":`+quoted+"}"), nil
	}
	inner, ok := memberOf(value, place.start, "resourceVersion")
	if !ok {
		return nil, fmt.Errorf("reading metadata: %w", errNoEnvelope)
	}
	return inner.put(value, "resourceVersion", quoted), nil
}

// member is where a member of an object is, or where it would be.
type member struct {
	found bool
	// start and end are of its value where it is found, else both are the place for
	// the whole member.
	start, end int
	first      bool // nothing stands before that place in the object
	last       bool // nothing stands after it
}

// put is document, a final newline added, with the member's value set.
func (m member) put(document []byte, name, value string) []byte {
	out := make([]byte, 0, len(document)+len(name)+len(value)+6)
	out = append(out, document[:m.start]...)
	if !m.found {
		if m.last && !m.first {
			out = append(out, ',')
		}
		out = append(out, '"')
		out = append(out, name...)
		out = append(out, '"', ':')
	}
	out = append(out, value...)
	if !m.found && !m.last {
		out = append(out, ',')
	}
	out = append(out, document[m.end:]...)
	return append(out, '\n')
}

// memberOf finds a member of the object that starts at a position of a valid
// document. Of a name that is there twice it is the last.
func memberOf(document []byte, at int, name string) (found member, ok bool) {
	if at >= len(document) || document[at] != '{' {
		return member{}, false
	}
	placed := false
	first := true
	for at = space(document, at+1); document[at] != '}'; first = false {
		if document[at] == ',' {
			at = space(document, at+1)
		}
		keyStart := at
		at = skip(document, at)
		key := document[keyStart+1 : at-1]
		start := space(document, space(document, at)+1) // behind the colon
		end := skip(document, start)
		switch {
		case string(key) == name || bytes.IndexByte(key, '\\') >= 0 && unquoted(document[keyStart:at]) == name:
			found, placed = member{found: true, start: start, end: end}, true
		case !placed && string(key) > name:
			found, placed = member{start: keyStart, end: keyStart, first: first}, true
		}
		at = space(document, end)
	}
	if !placed {
		found = member{start: at, end: at, first: first, last: true}
	}
	return found, true
}

func unquoted(text []byte) string {
	var out string
	if json.Unmarshal(text, &out) != nil {
		return ""
	}
	return out
}

// space is the first position from at on that is no white space.
func space(document []byte, at int) int {
	for at < len(document) && (document[at] == ' ' || document[at] == '\n' || document[at] == '\t' || document[at] == '\r') {
		at++
	}
	return at
}

// skip is the position behind the value that starts at a position of a valid
// document.
func skip(document []byte, at int) int {
	switch document[at] {
	case '"':
		for at++; document[at] != '"'; at++ {
			if document[at] == '\\' {
				at++
			}
		}
		return at + 1
	case '{', '[':
		depth := 0
		for {
			switch document[at] {
			case '"':
				at = skip(document, at)
				continue
			case '{', '[':
				depth++
			case '}', ']':
				depth--
			}
			at++
			if depth == 0 {
				return at
			}
		}
	}
	for at < len(document) && bytes.IndexByte([]byte(",}] \n\t\r"), document[at]) < 0 {
		at++
	}
	return at
}
