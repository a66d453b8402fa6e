// The page's entry: theme first, then the application.
import { mount } from 'svelte';
import App from './App.svelte';
import './app.css';
import { applyTheme } from './lib/settings.svelte';

applyTheme();
const target = document.getElementById('app');
if (target) mount(App, { target });
