package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sampan-io/sampan/services/scheduler/internal/config"
	"github.com/sampan-io/sampan/services/scheduler/internal/framework"
)

const head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"

func load(t *testing.T, text string) (map[string]*framework.Profile, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	loaded, err := config.Load(file)
	if err != nil {
		return nil, err
	}
	return loaded.Build(framework.Handle{})
}

func TestConfigurationRefusesByName(t *testing.T) {
	for text, want := range map[string]string{
		"kind: Pod\n":                                                                          "KubeSchedulerConfiguration",
		head + "nonsense: 1\n":                                                                 "nonsense",
		head + "parallelism: 4\n":                                                              "parallelism",
		head + "extenders: [{urlPrefix: x}]\n":                                                 "extenders",
		head + "percentageOfNodesToScore: 101\n":                                               "percentageOfNodesToScore",
		head + "podInitialBackoffSeconds: 20\n":                                                "podMaxBackoffSeconds",
		head + "clientConnection: {qps: 50}\n":                                                 "clientConnection.qps",
		head + "profiles: [{schedulerName: a}, {schedulerName: a}]\n":                          `"a" is there twice`,
		head + "profiles: [{plugins: {filter: {enabled: [{name: Fancy}]}}}]\n":                 `"Fancy"`,
		head + "profiles: [{plugins: {filter: {enabled: [{name: ImageLocality}]}}}]\n":         "does not have that extension point",
		head + "profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {colour: red}}]}]\n": "colour",
		head + "profiles: [{pluginConfig: [{name: InterPodAffinity, args: {hardPodAffinityWeight: 101}}]}]\n": "hardPodAffinityWeight",
		head + "profiles: [{plugins: {multiPoint: {disabled: [{name: '*'}]}}}]\n":                             "queueSort",
	} {
		if _, err := load(t, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want one with %q", text, err, want)
		}
	}
}

func TestProfilesTakeTheirPlugins(t *testing.T) {
	profiles, err := load(t, head+`
percentageOfNodesToScore: 30
profiles:
- schedulerName: default-scheduler
- schedulerName: packer
  percentageOfNodesToScore: 70
  plugins:
    score: {disabled: [{name: '*'}], enabled: [{name: NodeResourcesFit, weight: 7}]}
    multiPoint: {disabled: [{name: InterPodAffinity}]}
  pluginConfig:
  - name: NodeResourcesFit
    args: {apiVersion: kubescheduler.config.k8s.io/v1, kind: NodeResourcesFitArgs, scoringStrategy: {type: MostAllocated}}
`)
	if err != nil {
		t.Fatal(err)
	}
	usual, packer := profiles["default-scheduler"], profiles["packer"]
	if usual.Percentage != 30 || packer.Percentage != 70 {
		t.Errorf("percentages are %d and %d", usual.Percentage, packer.Percentage)
	}
	if len(packer.Score) != 1 || packer.Score[0].Name() != "NodeResourcesFit" || packer.Score[0].Weight != 7 {
		t.Errorf("the packer scores by %+v", packer.Score)
	}
	for _, filter := range packer.Filter {
		if filter.Name() == "InterPodAffinity" {
			t.Error("a disabled plugin filters")
		}
	}
	weights := map[string]int64{}
	for _, score := range usual.Score {
		weights[score.Name()] = score.Weight
	}
	for name, want := range map[string]int64{"TaintToleration": 3, "NodeAffinity": 2, "PodTopologySpread": 2, "InterPodAffinity": 2, "NodeResourcesFit": 1, "NodeResourcesBalancedAllocation": 1, "ImageLocality": 1} {
		if weights[name] != want {
			t.Errorf("%s has weight %d, want %d", name, weights[name], want)
		}
	}
}
