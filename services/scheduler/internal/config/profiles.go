package config

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	kubeschedulerv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/sampan-io/sampan/services/scheduler/internal/framework"
	"github.com/sampan-io/sampan/services/scheduler/internal/plugins"
)

// Build makes the profiles of c by scheduler name. The handle is that of all
// plugins; its Filterer is set to each profile.
func (c *Config) Build(handle framework.Handle) (map[string]*framework.Profile, error) {
	made := map[string]*framework.Profile{}
	for i := range c.Profiles {
		given := &c.Profiles[i]
		profile, err := newProfile(given, handle)
		if err != nil {
			return nil, fmt.Errorf("profiles[%d]: %w", i, err)
		}
		profile.Percentage = *c.PercentageOfNodesToScore
		if given.PercentageOfNodesToScore != nil {
			profile.Percentage = *given.PercentageOfNodesToScore
		}
		made[profile.SchedulerName] = profile
	}
	return made, nil
}

// builder makes one profile.
type builder struct {
	handle  framework.Handle
	args    map[string][]byte
	weights map[string]int32
	profile *framework.Profile
	given   kubeschedulerv1.Plugins
}

func newProfile(given *kubeschedulerv1.KubeSchedulerProfile, handle framework.Handle) (*framework.Profile, error) {
	b := &builder{
		handle: handle, args: map[string][]byte{}, weights: map[string]int32{},
		profile: &framework.Profile{SchedulerName: *given.SchedulerName, Plugins: map[string]framework.Plugin{}},
	}
	b.handle.Filterer = b.profile
	if given.Plugins != nil {
		b.given = *given.Plugins
	}
	for i, config := range given.PluginConfig {
		if _, ok := definition(config.Name); !ok {
			return nil, fmt.Errorf("pluginConfig[%d].name: there is no plugin %q", i, config.Name)
		}
		b.args[config.Name] = raw(config.Args)
	}
	if err := b.place(); err != nil {
		return nil, err
	}
	if b.profile.QueueSort == nil {
		return nil, fmt.Errorf("no queueSort plugin is enabled")
	}
	if len(b.profile.Bind) == 0 {
		return nil, fmt.Errorf("no bind plugin is enabled")
	}
	return b.profile, nil
}

func raw(args runtime.RawExtension) []byte { return args.Raw }

func definition(name string) (plugins.Definition, bool) {
	all := plugins.All()
	at := slices.IndexFunc(all, func(d plugins.Definition) bool { return d.Name == name })
	if at < 0 {
		return plugins.Definition{}, false
	}
	return all[at], true
}

// point is one extension point: what the configuration says of it, and how a plugin
// takes its place there; false when the plugin does not have it.
type point struct {
	name string
	set  kubeschedulerv1.PluginSet
	add  func(plugin framework.Plugin) bool
}

func (b *builder) points() []point {
	p, g := b.profile, &b.given
	return []point{
		{"preEnqueue", g.PreEnqueue, func(x framework.Plugin) bool { return add(&p.PreEnqueue, x) }},
		{"queueSort", g.QueueSort, b.addQueueSort},
		{"preFilter", g.PreFilter, func(x framework.Plugin) bool { return add(&p.PreFilter, x) }},
		{"filter", g.Filter, func(x framework.Plugin) bool { return add(&p.Filter, x) }},
		{"postFilter", g.PostFilter, func(x framework.Plugin) bool { return add(&p.PostFilter, x) }},
		{"preScore", g.PreScore, func(x framework.Plugin) bool { return add(&p.PreScore, x) }},
		{"score", g.Score, b.addScore},
		{"reserve", g.Reserve, func(x framework.Plugin) bool { return add(&p.Reserve, x) }},
		{"permit", g.Permit, func(x framework.Plugin) bool { return add(&p.Permit, x) }},
		{"preBind", g.PreBind, func(x framework.Plugin) bool { return add(&p.PreBind, x) }},
		{"bind", g.Bind, func(x framework.Plugin) bool { return add(&p.Bind, x) }},
		{"postBind", g.PostBind, func(x framework.Plugin) bool { return add(&p.PostBind, x) }},
	}
}

func add[T framework.Plugin](to *[]T, plugin framework.Plugin) bool {
	typed, ok := plugin.(T)
	if ok {
		*to = append(*to, typed)
	}
	return ok
}

func (b *builder) addQueueSort(plugin framework.Plugin) bool {
	sort, ok := plugin.(framework.QueueSort)
	if ok && b.profile.QueueSort == nil {
		b.profile.QueueSort = sort
	}
	return ok
}

func (b *builder) addScore(plugin framework.Plugin) bool {
	score, ok := plugin.(framework.Score)
	if ok {
		b.profile.Score = append(b.profile.Score, framework.Weighted{Score: score, Weight: int64(max(b.weights[plugin.Name()], 1))})
	}
	return ok
}

// place puts plugins at their points: those that a point enables itself in its
// order first, then those of multiPoint that it does not disable.
func (b *builder) place() error {
	multi, err := b.multiPoint()
	if err != nil {
		return err
	}
	for _, point := range b.points() {
		placed := map[string]bool{}
		for _, enabled := range point.set.Enabled {
			plugin, err := b.plugin(enabled)
			if err != nil {
				return fmt.Errorf("plugins.%s: %w", point.name, err)
			}
			if placed[enabled.Name] {
				return fmt.Errorf("plugins.%s: %s is enabled twice", point.name, enabled.Name)
			}
			placed[enabled.Name] = true
			if !point.add(plugin) {
				return fmt.Errorf("plugins.%s: %s does not have that extension point", point.name, enabled.Name)
			}
		}
		if disabled(point.set, "*") {
			continue
		}
		for _, enabled := range multi {
			if placed[enabled.Name] || disabled(point.set, enabled.Name) {
				continue
			}
			plugin, err := b.plugin(enabled)
			if err != nil {
				return err
			}
			point.add(plugin)
		}
	}
	return nil
}

func disabled(set kubeschedulerv1.PluginSet, name string) bool {
	return slices.ContainsFunc(set.Disabled, func(p kubeschedulerv1.Plugin) bool { return p.Name == name })
}

// multiPoint is the default plugins and those of the configuration, without the
// disabled ones.
func (b *builder) multiPoint() ([]kubeschedulerv1.Plugin, error) {
	given := b.given.MultiPoint
	var merged []kubeschedulerv1.Plugin
	if !disabled(given, "*") {
		for _, d := range plugins.All() {
			if !disabled(given, d.Name) {
				merged = append(merged, kubeschedulerv1.Plugin{Name: d.Name})
			}
		}
	}
	for _, enabled := range given.Enabled {
		if _, ok := definition(enabled.Name); !ok {
			return nil, fmt.Errorf("plugins.multiPoint: there is no plugin %q", enabled.Name)
		}
		at := slices.IndexFunc(merged, func(p kubeschedulerv1.Plugin) bool { return p.Name == enabled.Name })
		if at >= 0 {
			merged[at] = enabled
		} else {
			merged = append(merged, enabled)
		}
	}
	return merged, nil
}

// plugin is the one instance of a plugin in this profile.
func (b *builder) plugin(enabled kubeschedulerv1.Plugin) (framework.Plugin, error) {
	d, ok := definition(enabled.Name)
	if !ok {
		return nil, fmt.Errorf("there is no plugin %q", enabled.Name)
	}
	if enabled.Weight != nil && *enabled.Weight > 0 {
		b.weights[d.Name] = *enabled.Weight
	} else if b.weights[d.Name] == 0 {
		b.weights[d.Name] = d.Weight
	}
	if made := b.profile.Plugins[d.Name]; made != nil {
		return made, nil
	}
	made, err := d.New(b.args[d.Name], b.handle)
	if err != nil {
		return nil, err
	}
	b.profile.Plugins[d.Name] = made
	return made, nil
}
