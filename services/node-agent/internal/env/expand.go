package env

import "strings"

// Expand replaces $(NAME) by what lookup knows. $$ stands for one $, and what is
// unknown or malformed stays as it is.
func Expand(text string, lookup func(name string) (string, bool)) string {
	if !strings.Contains(text, "$") {
		return text
	}
	var out strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] != '$' || i+1 == len(text) {
			out.WriteByte(text[i])
			continue
		}
		switch text[i+1] {
		case '$':
			out.WriteByte('$')
			i++
		case '(':
			end := strings.IndexByte(text[i+2:], ')')
			if end < 0 { // never closed: plain text, and so is the parenthesis
				out.WriteString("$(")
				i++
				continue
			}
			name := text[i+2 : i+2+end]
			if value, known := lookup(name); known {
				out.WriteString(value)
			} else {
				out.WriteString("$(" + name + ")")
			}
			i += 2 + end
		default:
			out.WriteByte('$')
		}
	}
	return out.String()
}

// ExpandAll is Expand on each element; it returns nil for none.
func ExpandAll(texts []string, lookup func(name string) (string, bool)) []string {
	if len(texts) == 0 {
		return nil
	}
	out := make([]string, len(texts))
	for i, text := range texts {
		out[i] = Expand(text, lookup)
	}
	return out
}

// Lookup finds variables by name; the last of a name counts.
func Lookup(vars []Var) func(name string) (string, bool) {
	values := make(map[string]string, len(vars))
	for _, v := range vars {
		values[v.Name] = v.Value
	}
	return func(name string) (string, bool) {
		value, known := values[name]
		return value, known
	}
}
